/* plan_section.c: see plan_section.h. The section is hostile input: counts, sizes, names, kinds and indices are checked here; the
 * numbers of views, steps and arguments by the backend's compile(), after they were relocated by saturating arithmetic. */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "plan_section.h"
#include "section_tables.h"
#include "size.h"

enum { MOST_BLOCK = 4096, MOST_BATCH = 4096, MOST_CONTEXT = 1 << 30, MOST_ENTRIES = 1 << 20 };

static int wrong(const char *what) {
    return hal_fail(HAL_E_INVALID, "satchel.plan: %s; build the file again with `satchel build`", what);
}

static int kinds_ok(const uint8_t *kinds, uint32_t groups) {
    for (int i = 0; i < 4; i++)
        if (kinds[i] >= DIM_POOL + groups)
            return 0;
    return 1;
}

static int check_head(const gguf_file *f, const plan_head *h) {
    if (memcmp(h->magic, "SATPLAN2", 8) || h->size != f->plan.size)
        return wrong("expected a plan of this version, of as many bytes as it says");
    if (h->hal != HAL_ABI_HASH)
        return hal_fail(HAL_E_UNSUPPORTED,
                        "satchel.plan: it was built by another version of Satchel than this library is "
                        "of; run `satchel build` on the file again");
    if (h->crc != gguf_crc(0, (const uint8_t *)h + 16, h->size - 16))
        return wrong("its checksum is wrong: the file is damaged");
    if (h->file_crc != f->crc)
        return wrong("it was built for other metadata or tensors than the file's: the file was edited since");
    if (!h->n_groups || h->n_groups > MOST_GROUPS || !h->n_plans || h->n_plans > MOST_PLANS || !h->n_variants ||
        h->n_variants > MOST_VARIANTS || h->n_weights > MOST_ENTRIES || h->n_states > MOST_ENTRIES)
        return wrong("expected some plans, variants and layer groups, and not too many");
    if (!h->block || h->block > MOST_BLOCK || !h->batch || h->batch > MOST_BATCH || !h->vocabulary ||
        h->vocabulary > INT32_MAX || !h->least_context || h->least_context > h->most_context ||
        h->most_context > MOST_CONTEXT)
        return wrong("sizes of blocks, steps, vocabulary or context are out of range");
    if (h->pooling >= N_POOLINGS || !h->width || h->width > MOST_ENTRIES)
        return wrong("its kind of output is out of range");
    if (h->context < h->least_context || h->context > h->most_context || !h->slots || h->slots > MOST_SLOTS)
        return wrong("its default context or slots are out of range");
    return 0;
}

static int check_lists(const plan_section *s) {
    const plan_head *h = s->head;
    for (uint32_t i = 0; i < h->n_weights; i++) {
        const plan_weight *w = s->weights + i;
        if (w->name > h->n_names || w->name_size > h->n_names - w->name || w->ndim < 1 || w->ndim > 4 ||
            w->packed > PACKED_IN_FILE)
            return wrong("a weight's name or shape is out of range");
        for (uint32_t k = 0; k < w->name_size; k++) /* it stands in errors */
            if (s->names[w->name + k] <= ' ' || s->names[w->name + k] > '~')
                return wrong("a weight's name is not printable");
        for (int k = 0; k < 4; k++)
            if (w->shape[k] < 1 || w->shape[k] > INT32_MAX)
                return wrong("a weight's shape is out of range");
    }
    for (uint32_t i = 0; i < h->n_states; i++)
        if (!s->states[i].unit || !kinds_ok(s->states[i].kinds, h->n_groups))
            return wrong("a state's size is out of range");
    for (uint32_t i = 0; i < h->n_groups; i++)
        if (s->groups[i].window > WINDOW_RECURRENT || (i && s->groups[i].window <= s->groups[i - 1].window))
            return wrong("windows of layer groups do not rise");
    return 0;
}

/* A plan has each input once, and a table for each layer group. */
static int check_fields(const plan_head *h, const plan_tables *p) {
    uint32_t seen[N_FIELDS] = {0}, groups = 0;
    for (uint32_t i = 0; i < p->entry->n_fields; i++) {
        const plan_field *f = p->fields + i;
        if (f->what >= N_FIELDS || f->group >= h->n_groups || !f->unit || !kinds_ok(f->kinds, h->n_groups))
            return wrong("an input is of no known kind");
        if (f->what == FIELD_TABLE ? groups & 1u << f->group : seen[f->what])
            return wrong("a plan has an input twice");
        seen[f->what] = 1;
        groups |= f->what == FIELD_TABLE ? 1u << f->group : 0;
    }
    for (int i = 0; i < N_FIELDS; i++) {
        int masked = i == FIELD_BITMASK || i == FIELD_EDITS;
        if (masked ? seen[i] != (p->entry->what == OUTPUT_MASKED)
                   : i < FIELD_TABLE && !seen[i] && (i != FIELD_PARAMS || !h->pooling))
            return wrong("a plan lacks an input, or has one that it does not read");
    }
    return groups == (1u << h->n_groups) - 1 ? 0 : wrong("a plan lacks a layer group's table");
}

static int check_plan(const plan_section *s, const plan_tables *p) {
    const plan_head *h = s->head;
    const plan_entry *e = p->entry;
    if (e->variant >= h->n_variants || !e->tokens || e->tokens > h->batch || !e->rows || e->rows > e->tokens ||
        (e->rows > MOST_SLOTS && !h->pooling))
        return wrong("tokens or rows of a plan are out of range");
    if (e->what >= N_OUTPUTS || (h->pooling && e->what != OUTPUT_TOKENS))
        return wrong("a plan's output is of no known kind");
    if (e->out > INT32_MAX || e->output % 4 || e->output > e->out ||
        e->out - e->output < (e->what == OUTPUT_MASKED ? 8ull : 4ull) * e->rows * (h->pooling ? h->width : 1))
        return wrong("a plan's output is out of range");
    for (uint32_t i = 0; i < e->n_views; i++) {
        const plan_view *v = p->views + i;
        uint32_t most = v->of == BUFFER_STEP    ? e->n_fields
                        : v->of == BUFFER_STATE ? h->n_states
                        : v->of >= BUFFER_FILE  ? h->n_weights
                                                : UINT32_MAX;
        if (v->of >= N_BUFFERS || v->index >= most || !kinds_ok(v->kinds, h->n_groups))
            return wrong("a view shows what is not there");
        if (v->of >= BUFFER_FILE && (s->weights[v->index].packed != PACKED_NOT) != (v->of == BUFFER_PACKED))
            return wrong("a view shows a weight in another layout than it has");
    }
    return check_fields(h, p);
}

static int read_plans(plan_section *s, tables *t) {
    for (uint32_t i = 0; i < s->head->n_plans; i++) {
        plan_tables *p = s->plans + i;
        const plan_entry *e = p->entry = next(t, 1, sizeof *e);
        int code;
        if (!e)
            break;
        p->fields = next(t, e->n_fields, sizeof *p->fields);
        p->steps = next(t, e->n_steps, sizeof *p->steps);
        p->views = next(t, e->n_views, sizeof *p->views);
        p->ops = next(t, e->n_ops, sizeof *p->ops);
        p->args = next(t, e->n_args, 1);
        p->consts = next(t, e->n_consts, 1);
        if (t->failed)
            break;
        if ((code = check_plan(s, p)))
            return code;
        if (i && e->variant < s->plans[i - 1].entry->variant)
            return wrong("plans are not in the order of their variants");
    }
    return t->failed || t->at != t->size ? wrong("its tables have another size than it says") : 0;
}

static int read_section(const gguf_file *f, plan_section *s) {
    tables t = {s->copy, 0, f->plan.size, 0};
    int code;
    memcpy(s->copy, f->plan.data, f->plan.size);
    s->head = next(&t, 1, sizeof *s->head);
    if (!s->head)
        return wrong("it is too short");
    if ((code = check_head(f, s->head)))
        return code;
    s->names = next(&t, s->head->n_names, 1);
    s->weights = next(&t, s->head->n_weights, sizeof *s->weights);
    s->states = next(&t, s->head->n_states, sizeof *s->states);
    s->groups = next(&t, s->head->n_groups, sizeof *s->groups);
    if (t.failed)
        return wrong("its tables have another size than it says");
    return (code = check_lists(s)) ? code : read_plans(s, &t);
}

int plan_section_read(const gguf_file *f, plan_section *s) {
    int code;
    *s = (plan_section){0};
    if (f->plan.size > UINT32_MAX)
        return wrong("it is too long");
    if (!(s->copy = malloc(f->plan.size + 8)))
        return hal_fail(HAL_E_MEMORY, "no memory for a plan of %llu bytes", (unsigned long long)f->plan.size);
    if ((code = read_section(f, s)))
        plan_section_free(s);
    return code;
}

void plan_section_free(plan_section *s) {
    free(s->copy);
    *s = (plan_section){0};
}

/* The number that a kind of dimension stands for. */
static uint64_t kind_value(const cache_size *c, uint8_t kind) {
    const int32_t fixed[DIM_POOL] = {1, c->slots, c->context + 1, c->width};
    return (uint64_t)(kind < DIM_POOL ? fixed[kind] : c->pools[kind - DIM_POOL]);
}

static uint64_t kinds_size(uint64_t unit, const uint8_t *kinds, const cache_size *c) {
    for (int i = 0; i < 4; i++)
        unit = size_mul(unit, kind_value(c, kinds[i]));
    return unit;
}

uint64_t plan_states(const plan_section *s, const cache_size *c, uint64_t *offsets) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < s->head->n_states; i++) {
        offsets[i] = at;
        at = size_line_up(size_add(at, kinds_size(s->states[i].unit, s->states[i].kinds, c)), 64);
    }
    return at;
}

/* Bytes that the library writes into an input. */
static uint64_t field_bytes(const plan_head *h, const plan_entry *e, const plan_field *f, const cache_size *c) {
    switch (f->what) {
    case FIELD_ROWS:
        return 4ull * e->rows;
    case FIELD_PARAMS:
        return (uint64_t)sizeof(hal_sampling) * e->rows;
    case FIELD_BITMASK:
        return 4ull * e->rows * ((h->vocabulary + 31ull) / 32);
    case FIELD_EDITS:
        return 8ull * e->rows * MOST_EDITS;
    case FIELD_TABLE:
        return 4ull * (uint64_t)c->slots * (uint64_t)c->width;
    default:
        return 4ull * e->tokens;
    }
}

/* The begin of each field, in the order of the table; the end of the last one. */
static uint64_t place_fields(const plan_tables *p, const cache_size *c, uint64_t *begins) {
    uint64_t at = HAL_COUNTS * sizeof(int32_t);
    for (uint32_t i = 0; i < p->entry->n_fields; i++) {
        begins[i] = size_line_up(at, 8);
        at = size_add(begins[i], kinds_size(p->fields[i].unit, p->fields[i].kinds, c));
    }
    return at;
}

enum { MOST_FIELDS = N_FIELDS + MOST_GROUPS }; /* check_fields() lets no plan have more */

int plan_block(const plan_section *s, const plan_tables *p, const cache_size *c, block_layout *out) {
    uint64_t begins[MOST_FIELDS];
    out->size = size_line_up(place_fields(p, c, begins), 64);
    for (uint32_t i = 0; i < p->entry->n_fields; i++) {
        const plan_field *f = p->fields + i;
        if (kinds_size(f->unit, f->kinds, c) != field_bytes(s->head, p->entry, f, c))
            return wrong("an input has another size than its contents");
        if (f->what == FIELD_TABLE)
            out->tables[f->group] = begins[i];
        else
            out->fields[f->what] = begins[i];
    }
    return out->size > INT32_MAX ? wrong("a step block is too large") : 0;
}

void plan_views(const plan_section *s, const plan_tables *p, const cache_size *c, const uint64_t *states,
                const uint64_t *weights, hal_view *out) {
    uint64_t begins[MOST_FIELDS];
    (void)s;
    place_fields(p, c, begins);
    for (uint32_t i = 0; i < p->entry->n_views; i++) {
        const plan_view *v = p->views + i;
        out[i] = v->view;
        out[i].buffer = v->of;
        out[i].offset = size_add(v->view.offset, v->of == BUFFER_STEP    ? begins[v->index]
                                                 : v->of == BUFFER_STATE ? states[v->index]
                                                 : v->of >= BUFFER_FILE  ? weights[v->index]
                                                                         : 0);
        for (int d = 0; d < 4; d++) {
            uint64_t value = kind_value(c, v->kinds[d]);
            if (v->kinds[d] == DIM_FIXED)
                continue;
            out[i].shape[d] = value > INT32_MAX ? -1 : (int32_t)value;
            out[i].stride = d ? size_mul(out[i].stride, value) : out[i].stride;
        }
    }
}
