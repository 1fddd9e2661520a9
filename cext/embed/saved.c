/* saved.c: see saved.h. The bytes: saved_head, the tokens (int32, padded to a multiple of 8 bytes), then for each layer group each
 * block that the next token may read, of each state in order. All are little-endian, as the file's own. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "saved.h"
#include "size.h"

typedef struct {
    char magic[8]; /* SATSAVE1 */
    uint64_t size;
    uint32_t crc;           /* CRC-32 of what follows the head */
    uint32_t plan, weights; /* CRC-32 of the plan, and of some bytes of each tensor: the model that it belongs to */
    uint32_t n_tokens, n_computed, zero;
} saved_head;
enum { SAMPLED = 64 }; /* bytes of a tensor that tell it from others */

static int wrong(const char *what) {
    return hal_fail(SATCHEL_E_FILE, "saved conversation: %s", what);
}

/* --- what there is to save */

/* Whether a state is the table of tokens by slot and position, which is written anew. */
static int is_tokens(const plan_state *s) {
    return s->kinds[0] == DIM_SLOTS && s->kinds[1] == DIM_RING && !s->kinds[2] && !s->kinds[3] && s->unit == 4;
}

/* The layer group of a state that is made of blocks; -1: it is none. */
static int group_of(const plan_state *s) {
    return s->kinds[0] >= DIM_POOL && !s->kinds[1] && !s->kinds[2] && !s->kinds[3] ? s->kinds[0] - DIM_POOL : -1;
}

uint64_t saved_size(const satchel_model *m, int64_t tokens, int64_t computed) {
    uint64_t size = sizeof(saved_head) + size_line_up(4 * (uint64_t)tokens, 8);
    for (uint32_t i = 0; i < m->plan.head->n_states; i++) {
        const plan_state *s = m->plan.states + i;
        int group = group_of(s);
        int32_t first, end;
        if (is_tokens(s))
            continue;
        if (group < 0) {
            wrong("this model has states that cannot be saved");
            return 0;
        }
        blocks_span(&m->blocks, group, (int32_t)computed, &first, &end);
        size = size_add(size, size_mul(s->unit, (uint64_t)(end - first)));
    }
    return size;
}

static uint32_t crc_of_weights(const satchel_model *m) {
    uint32_t crc = 0;
    for (uint64_t i = 0; i < m->gguf.n_tensors; i++) {
        const gguf_tensor *t = m->gguf.tensors + i;
        uint64_t size = t->size < SAMPLED ? t->size : SAMPLED;
        crc = gguf_crc(crc, m->map.data + t->offset + (t->size - size) / 2, size);
    }
    return crc;
}

/* --- transfers */

static void put(saved_stream *s, const void *from, uint64_t size) {
    s->crc = gguf_crc(s->crc, from, size);
    s->at += size;
    if (s->code)
        return;
    if (!s->file)
        memcpy(s->bytes + s->at - size, from, size);
    else if (fwrite(from, 1, size, s->file) != size)
        s->code = hal_fail(SATCHEL_E_FILE, "saved conversation: can't be written: %s", strerror(errno));
}

static void get(saved_stream *s, void *to, uint64_t size) {
    if (!s->code && size > s->size - s->at)
        s->code = wrong("expected more bytes, got its end");
    if (!s->code && s->file && fread(to, 1, size, s->file) != size)
        s->code = wrong("can't be read, or was cut while it was read");
    if (s->code)
        return;
    if (!s->file)
        memcpy(to, s->bytes + s->at, size);
    s->at += size;
    s->crc = gguf_crc(s->crc, to, size);
}

/* Moves every block of the slot between its states and the stream. */
static int move_blocks(satchel_model *m, int32_t slot, int32_t computed, saved_stream *s, int out) {
    uint64_t *offsets = calloc((size_t)m->plan.head->n_states + 1, sizeof *offsets), largest = 8;
    uint8_t *block = NULL;
    for (uint32_t i = 0; i < m->plan.head->n_states; i++)
        if (group_of(m->plan.states + i) >= 0 && m->plan.states[i].unit > largest)
            largest = m->plan.states[i].unit;
    if (!offsets || !(block = malloc(largest)))
        s->code = hal_fail(SATCHEL_E_MEMORY, "no memory for a block of %llu bytes", (unsigned long long)largest);
    else
        plan_states(&m->plan, &m->size, offsets);
    for (int group = 0; group < m->blocks.n_groups; group++) {
        int32_t first, end;
        const int32_t *row = m->blocks.groups[group].table + (size_t)slot * (size_t)m->blocks.width;
        blocks_span(&m->blocks, group, computed, &first, &end);
        for (int32_t entry = first; entry < end; entry++)
            for (uint32_t i = 0; !s->code && i < m->plan.head->n_states; i++) {
                uint64_t unit = m->plan.states[i].unit, at = offsets[i] + unit * (uint64_t)row[entry];
                if (group_of(m->plan.states + i) != group)
                    continue;
                if (out && !(s->code = model_code(m->backend->read(m->state, at, block, unit))))
                    put(s, block, unit);
                if (!out)
                    get(s, block, unit);
                if (!out && !s->code)
                    s->code = model_code(m->backend->write(m->state, at, block, unit));
            }
    }
    free(offsets);
    free(block);
    return s->code;
}

/* Writes the slot's tokens into the table of tokens, which samplers read. */
static int write_tokens(satchel_model *m, int32_t slot, int64_t count) {
    uint64_t *offsets = calloc((size_t)m->plan.head->n_states + 1, sizeof *offsets);
    int code = offsets ? 0 : hal_fail(SATCHEL_E_MEMORY, "no memory for a list of states");
    if (!code)
        plan_states(&m->plan, &m->size, offsets);
    for (uint32_t i = 0; !code && i < m->plan.head->n_states; i++)
        if (is_tokens(m->plan.states + i))
            code = model_code(m->backend->write(m->state,
                                                offsets[i] + 4 * (uint64_t)slot * ((uint64_t)m->size.context + 1),
                                                m->tokens[slot], 4 * (uint64_t)count));
    free(offsets);
    return code;
}

/* --- both ways */

int saved_write(satchel_model *m, int32_t slot, const int32_t *ids, int64_t count, saved_stream *s) {
    static const uint8_t padding[4];
    int32_t computed = m->blocks.lengths[slot];
    saved_head head = {.magic = {'S', 'A', 'T', 'S', 'A', 'V', 'E', '1'},
                       .size = saved_size(m, count, computed),
                       .plan = m->plan.head->crc,
                       .weights = crc_of_weights(m),
                       .n_tokens = (uint32_t)count,
                       .n_computed = (uint32_t)computed};
    if (!head.size)
        return SATCHEL_E_FILE;
    put(s, &head, sizeof head);
    s->crc = 0;
    put(s, ids, 4 * (uint64_t)count);
    put(s, padding, (uint64_t)count % 2 * 4);
    if (move_blocks(m, slot, computed, s, 1))
        return s->code;
    head.crc = s->crc;
    if (!s->file)
        memcpy(s->bytes, &head, sizeof head);
    else if (fseek(s->file, 0, SEEK_SET) || fwrite(&head, 1, sizeof head, s->file) != sizeof head)
        return hal_fail(SATCHEL_E_FILE, "saved conversation: can't be written: %s", strerror(errno));
    return 0;
}

static int check_head(const satchel_model *m, const saved_head *h, const saved_stream *s) {
    if (memcmp(h->magic, "SATSAVE1", 8) || h->size != s->size)
        return wrong("expected one of this version, of as many bytes as it says");
    if (h->plan != m->plan.head->crc)
        return wrong("it was saved with another model, or another build of it: expected the file that is open");
    if (h->weights != crc_of_weights(m))
        return wrong("it was saved with other weights than the file's that is open");
    if (h->n_tokens > (uint32_t)m->size.context)
        return hal_fail(SATCHEL_E_LONG, "saved conversation: expected at most %d tokens, the context, got %u",
                        m->size.context, h->n_tokens);
    if (!h->n_tokens || h->n_computed > h->n_tokens || h->zero)
        return wrong("its numbers of tokens are out of range");
    if (saved_size(m, h->n_tokens, h->n_computed) != h->size)
        return wrong("its states have another size than this model's");
    return 0;
}

static int32_t free_slot(const satchel_model *m) {
    int32_t found = -1;
    for (int32_t i = 0; i < m->size.slots; i++)
        if (!m->replies[i] && (found < 0 || m->used[i] < m->used[found]))
            found = i;
    return found;
}

static int read_tokens(const satchel_model *m, const saved_head *h, saved_stream *s, int32_t **ids) {
    uint64_t bytes = size_line_up(4 * (uint64_t)h->n_tokens, 8);
    if (!(*ids = malloc(bytes)))
        return hal_fail(SATCHEL_E_MEMORY, "no memory for %u tokens", h->n_tokens);
    get(s, *ids, bytes);
    for (uint32_t i = 0; !s->code && i < h->n_tokens; i++)
        if ((*ids)[i] < 0 || (uint32_t)(*ids)[i] >= m->plan.head->vocabulary)
            s->code = wrong("a token is out of range");
    return s->code;
}

int64_t saved_read(satchel_model *m, saved_stream *s, int32_t **ids) {
    saved_head head = {0};
    int32_t slot = free_slot(m);
    int code;
    *ids = NULL;
    get(s, &head, sizeof head);
    s->crc = 0;
    if ((code = s->code ? s->code : check_head(m, &head, s)))
        return code;
    if (slot < 0)
        return hal_fail(SATCHEL_E_FULL, "all %d slots have a reply: free one, or open the model with more",
                        m->size.slots);
    if (!(code = read_tokens(m, &head, s, ids)) &&
        !(code = model_code(blocks_restore(&m->blocks, slot, (int32_t)head.n_computed))))
        code = move_blocks(m, slot, (int32_t)head.n_computed, s, 0);
    if (!code && s->crc != head.crc)
        code = wrong("its checksum is wrong: it is damaged");
    if (!code) {
        memcpy(m->tokens[slot], *ids, 4 * (size_t)head.n_computed);
        code = write_tokens(m, slot, head.n_computed);
    }
    if (code) {
        blocks_cut(&m->blocks, slot, 0);
        free(*ids);
        *ids = NULL;
        return code;
    }
    m->used[slot] = ++m->uses;
    return head.n_tokens;
}
