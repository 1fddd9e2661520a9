/* experts.c: matrix products of a mixture of experts with weights (E, N, K): expert_linear; expert_swiglu, with gate and up;
 * and head_linear, where each head is an expert that all tokens use. ids (T, k) gives each token's experts; a slot is an index
 * t * k + j into it.
 *
 * The work is one list of items (expert, ITEM rows) over the experts that some token uses, in order of first appearance. All
 * rows of x of an expert are gathered in the thread's scratch, COLUMNS at a time, so its weights are read once. A result
 * depends on its row of x and its row of the weight alone. The list has its maximum length; items past the last expert are
 * empty. An id below 0 means an expert on another device: its result is zeros, and each item writes its share of the tokens'.
 * Each run() scans ids again, so a grain holds enough products to amortize that.
 */
#include <string.h>

#include "ops/elementwise.h"
#include "matmul/product.h"
#include "size.h"

enum { ITEM = 64, ROWS = 128, COLUMNS = 32 };

/* A thread's scratch in a step. */
typedef struct {
    const cpu_call *c;
    const cpu_view *y, *x, *ids;
    int n_weights, k;
    int32_t *known;           /* per expert: 1 if a token uses it */
    int32_t *experts, *slots; /* the used experts in order; the slots of the current expert */
    uint64_t x_bytes, x_stride;
    uint8_t *columns; /* COLUMNS rows of x, x_stride bytes apart */
    float *sums[2];   /* results of gate and up: (COLUMNS, ROWS) each */
    uint8_t *panels;  /* ROWS rows of an unpacked weight, packed */
    uint8_t *product; /* scratch of the product */
} work;

/* Whether the op is head_linear: its last input is a weight, not ids. */
static int by_head(const cpu_call *c) {
    return c->v[c->n_in].ndim == 3;
}

static uint64_t align_up(uint64_t n) {
    return size_line_up(n, PANEL_LINE);
}

/* The view whose shape begins with (T, k): ids, or x for head_linear, whose heads are its experts. */
static const cpu_view *ids_of(const cpu_call *c) {
    return by_head(c) ? c->v + 1 : c->v + c->n_in;
}

static int64_t most_experts(const cpu_call *c) {
    const cpu_view *ids = ids_of(c);
    int64_t slots = (int64_t)ids->shape[0] * ids->shape[1], experts = c->v[2].shape[0];
    return slots < experts ? slots : experts;
}

static int n_weights(const cpu_call *c) {
    return by_head(c) ? 1 : c->n_in - 2;
}

/* Bytes of the row of x that one expert multiplies. */
static uint64_t bytes_of_x(const cpu_view *x) {
    const block_format *f = block_format_find(x->format);
    return (uint64_t)x->shape[x->ndim - 1] / f->block * f->bytes;
}

static uint64_t bytes_of_panel(const cpu_view *w) {
    return panel_bytes(panel_format_find(w->format), w->shape[2]);
}

/* Bytes of ROWS rows in panels if some weight is not packed, else 0. */
static uint64_t bytes_to_pack(const cpu_call *c) {
    uint64_t most = 0;
    for (int i = 2; i < 2 + n_weights(c); i++)
        if (!c->v[i].packed && bytes_of_panel(c->v + i) > most)
            most = bytes_of_panel(c->v + i);
    return ROWS / PANEL_ROWS * most;
}

/* Assigns the scratch from `at` on; gives its size in bytes. */
static uint64_t lay_out(const cpu_call *c, uint8_t *at, work *w) {
    const cpu_view *ids = ids_of(c);
    uint64_t experts = align_up(sizeof(int32_t) * (uint64_t)c->v[2].shape[0]);
    uint64_t slots = align_up(size_mul(sizeof(int32_t) * (uint64_t)ids->shape[0], (uint64_t)ids->shape[1]));
    uint64_t sums = sizeof(float) * COLUMNS * ROWS, end = 0;
    if (slots >= SIZE_TOO_MUCH / 2) /* too large: no address in it is computed */
        return SIZE_TOO_MUCH;
    *w = (work){.c = c, .y = c->v, .x = c->v + 1, .ids = ids, .n_weights = n_weights(c), .k = ids->shape[1]};
    w->x_bytes = bytes_of_x(w->x);
    w->x_stride = align_up(w->x_bytes);
    w->known = (int32_t *)(at + end);
    w->experts = (int32_t *)(at + (end += experts));
    w->slots = (int32_t *)(at + (end += experts));
    w->columns = at + (end += slots);
    w->sums[0] = (float *)(at + (end += COLUMNS * w->x_stride));
    w->sums[1] = (float *)(at + (end += sums));
    w->panels = at + (end += sums);
    w->product = at + (end += bytes_to_pack(c));
    return end + product_scratch(c->v[2].shape[2], COLUMNS);
}

static uint64_t scratch(const cpu_call *c) {
    static uint8_t nowhere[1];
    work w;
    return lay_out(c, nowhere, &w);
}

/* Lists the experts that tokens use; gives their number. An id >= E faults the run. */
static int find_experts(work *w) {
    int n = 0, n_experts = w->c->v[2].shape[0];
    memset(w->known, 0, sizeof *w->known * (size_t)n_experts);
    for (; by_head(w->c) && n < n_experts && w->ids->shape[0]; n++) {
        w->known[n] = w->ids->shape[0];
        w->experts[n] = n;
    }
    if (by_head(w->c))
        return n;
    for (int t = 0; t < w->ids->shape[0]; t++) {
        const int32_t *ids = (const int32_t *)cpu_row(w->ids, t);
        for (int j = 0; j < w->k; j++) {
            if (ids[j] >= n_experts)
                cpu_fault(w->c);
            else if (ids[j] >= 0 && !w->known[ids[j]]++)
                w->experts[n++] = ids[j];
        }
    }
    return n;
}

/* Lists the slots of this expert; gives their number. */
static int find_slots(work *w, int expert) {
    int n = 0, slot = 0;
    for (; by_head(w->c) && n < w->ids->shape[0]; n++)
        w->slots[n] = n * w->k + expert;
    if (by_head(w->c))
        return n;
    for (int t = 0; t < w->ids->shape[0] && n < w->known[expert]; t++) {
        const int32_t *ids = (const int32_t *)cpu_row(w->ids, t);
        for (int j = 0; j < w->k; j++, slot++) {
            w->slots[n] = slot;
            n += ids[j] == expert;
        }
    }
    return n;
}

static const uint8_t *row_of_x(const work *w, int slot) {
    const uint8_t *row = cpu_row(w->x, slot / w->k);
    return w->x->ndim == 3 ? row + w->x_bytes * (uint64_t)(slot % w->k) : row;
}

/* The rows of x of n slots, contiguous: a copy, or for one slot the row itself. */
static const uint8_t *gather(const work *w, const int32_t *slots, int n) {
    if (n == 1)
        return row_of_x(w, slots[0]);
    for (int j = 0; j < n; j++)
        memcpy(w->columns + w->x_stride * (uint64_t)j, row_of_x(w, slots[j]), w->x_bytes);
    return w->columns;
}

/* Panels of `rows` rows of an expert from `row` (a multiple of 16) on: in place, or packed to scratch. */
static const uint8_t *panels_at(const work *w, const cpu_view *v, int expert, int64_t row, int rows) {
    const panel_format *f = panel_format_find(v->format);
    uint64_t bytes = bytes_of_panel(v), row_bytes = (uint64_t)v->shape[2] / (uint64_t)f->block * (uint64_t)f->bytes;
    const uint8_t *from = cpu_row(v, expert);
    if (v->packed)
        return from + bytes * (uint64_t)(row / PANEL_ROWS);
    for (int i = 0; i < rows; i += PANEL_ROWS)
        panel_pack(f, v->shape[2], rows - i < PANEL_ROWS ? rows - i : PANEL_ROWS,
                   from + row_bytes * (uint64_t)(row + i), row_bytes, w->panels + bytes * (uint64_t)(i / PANEL_ROWS));
    return w->panels;
}

/* sums[j * ROWS + i] = row `row` + i of an expert's weight number `which` times row j of the n rows at x. */
static void multiply(const work *w, int which, int expert, int64_t row, int rows, const uint8_t *x, int n) {
    const cpu_view *v = w->c->v + 2 + which;
    product p = {.stride = bytes_of_panel(v),
                 .head = panel_head(panel_format_find(v->format), v->shape[2]),
                 .panels = (rows + PANEL_ROWS - 1) / PANEL_ROWS,
                 .k = v->shape[2],
                 .x = x,
                 .x_stride = w->x_stride,
                 .n = n,
                 .out = w->sums[which],
                 .pitch = ROWS,
                 .scratch = w->product,
                 .flags = w->c->flags};
    p.w = panels_at(w, v, expert, row, rows);
    product_find(w->c->set, v->format, w->x->format, w->c->flags)->run(&p);
}

/* Computes rows first .. last - 1 of an expert for n slots. */
static void run_columns(const work *w, int expert, int64_t first, int64_t last, const int32_t *slots, int n) {
    const uint8_t *x = gather(w, slots, n);
    for (; first < last; first += ROWS) {
        int rows = (int)(last - first < ROWS ? last - first : ROWS);
        for (int i = 0; i < w->n_weights; i++)
            multiply(w, i, expert, first, rows, x, n);
        for (int j = 0; j < n; j++) {
            float *y = cpu_f32(w->y, slots[j] / w->k) + (int64_t)(slots[j] % w->k) * w->y->shape[2] + first;
            if (w->n_weights == 2)
                row_swiglu(w->sums[0] + j * ROWS, w->sums[1] + j * ROWS, y, rows);
            else
                memcpy(y, w->sums[0] + j * ROWS, sizeof *y * (size_t)rows);
        }
    }
}

static void run_expert(work *w, int expert, int64_t first, int64_t last) {
    int n = find_slots(w, expert);
    for (int j = 0; j < n; j += COLUMNS)
        run_columns(w, expert, first, last, w->slots + j, n - j < COLUMNS ? n - j : COLUMNS);
}

/* Writes zeros to the results of tokens first .. last - 1 whose id is below 0. */
static void clear_others(const work *w, int64_t first, int64_t last) {
    for (int64_t t = first; t < last && !by_head(w->c); t++) {
        const int32_t *ids = (const int32_t *)cpu_row(w->ids, t);
        for (int j = 0; j < w->k; j++)
            if (ids[j] < 0)
                memset(cpu_f32(w->y, t) + (int64_t)j * w->y->shape[2], 0, sizeof(float) * (size_t)w->y->shape[2]);
    }
}

static int64_t items_of_expert(const cpu_call *c) {
    return ((int64_t)c->v[0].shape[2] + ITEM - 1) / ITEM;
}

static void run(const cpu_call *c, int64_t from, int64_t to, int thread) {
    int64_t each = items_of_expert(c), rows = c->v[0].shape[2], all = most_experts(c) * each;
    work w;
    int n;
    lay_out(c, cpu_scratch(c, thread), &w);
    n = find_experts(&w);
    clear_others(&w, w.ids->shape[0] * from / all, w.ids->shape[0] * to / all);
    while (from < to && from / each < n) {
        int64_t first = from % each, last = first + to - from < each ? first + to - from : each;
        int64_t end = last * ITEM < rows ? last * ITEM : rows;
        run_expert(&w, w.experts[from / each], first * ITEM, end);
        from += last - first;
    }
}

/* Sizes a grain to amortize its scheduling and a scan of ids, which together cost about 160 products of a row. */
static cpu_split split(const cpu_call *c) {
    int64_t experts = most_experts(c), k = c->v[2].shape[2];
    int64_t slots = (int64_t)ids_of(c)->shape[0] * ids_of(c)->shape[1];
    int64_t each = experts ? slots / experts : 0, least = 160 * experts / k;
    cpu_split s = cpu_grains(experts * items_of_expert(c), ITEM * k * each * n_weights(c) / 8);
    s.grain = s.grain > least ? s.grain : least;
    return s;
}

static const char *check(const cpu_call *c) {
    return (int64_t)c->v->shape[0] * c->v->shape[1] > INT32_MAX ? "ids are too many"
                                                                : check_weights(c, c->n_in == 4 ? 2 : 1);
}

CPU_KERNEL(head_linear) = {check, scratch, split, run, .takes_packed = 1};
CPU_KERNEL(expert_linear) = {check, scratch, split, run, .takes_packed = 1};
CPU_KERNEL(expert_swiglu) = {check, scratch, split, run, .takes_packed = 1};
