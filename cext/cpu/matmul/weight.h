/* weight.h: a weight (N, K) as operand of products: its panels in place if it is packed, else packed panel by panel into a
 * thread's scratch. The sums are the same; an unpacked weight costs that copy.
 */
#ifndef SATCHEL_CPU_WEIGHT_H
#define SATCHEL_CPU_WEIGHT_H

#include "weights/panel.h"
#include "product.h"

enum { BYTES_A_GRAIN = 65536, LEAST_A_GRAIN = 32768, GRAINS = 16, MANY_COLUMNS = 64, PANELS_FOR_MANY = 8 };

static inline int64_t panels_of(const cpu_view *w) {
    return ((int64_t)w->shape[0] + PANEL_ROWS - 1) / PANEL_ROWS;
}

static inline uint64_t bytes_of_panel(const cpu_view *w) {
    return panel_bytes(panel_format_find(w->format), w->shape[1]);
}

/* Panels per grain of `panels` in all, with `weights` weights multiplied together: enough work to amortize scheduling. Of a small matrix with
 * long rows, such as a router's, fewer, so that there are grains for more threads. */
static inline int64_t panels_a_grain(const cpu_view *w, int weights, int64_t tokens, int64_t panels) {
    int64_t work = (int64_t)(bytes_of_panel(w) * (uint64_t)weights * (uint64_t)(1 + tokens / 8));
    int64_t grain = BYTES_A_GRAIN / work, least = LEAST_A_GRAIN / work, fair = panels / GRAINS;
    if (tokens >= MANY_COLUMNS)
        grain = PANELS_FOR_MANY;
    else
        grain = grain < 2 ? 2 : grain > PRODUCT_PANELS ? PRODUCT_PANELS : grain;
    fair = fair > least ? fair : least;
    fair = fair > 1 ? fair : 1;
    return grain < fair ? grain : fair;
}

/* Bytes of scratch of a product, rounded up to a line. */
static inline uint64_t scratch_product(const cpu_view *x) {
    return (product_scratch(x->shape[1], x->shape[0]) + PANEL_LINE - 1) / PANEL_LINE * PANEL_LINE;
}

/* Bytes of scratch for `panels` panels of any unpacked one of these weights. */
static inline uint64_t scratch_panels(const cpu_view *w, int n_weights, int panels) {
    uint64_t most = 0;
    for (int i = 0; i < n_weights; i++)
        if (!w[i].packed && panel_format_find(w[i].format) && bytes_of_panel(w + i) > most)
            most = bytes_of_panel(w + i);
    return (uint64_t)panels * most;
}

/* Panels first .. first + n - 1 of a weight: in place, or packed into `to`. */
static inline const uint8_t *panels_at(const cpu_view *w, int64_t first, int64_t n, uint8_t *to) {
    const panel_format *f = panel_format_find(w->format);
    uint64_t bytes = panel_bytes(f, w->shape[1]);
    if (w->packed)
        return w->data + bytes * (uint64_t)first;
    for (int64_t i = 0; i < n; i++) {
        int64_t row = (first + i) * PANEL_ROWS, rows = w->shape[0] - row;
        panel_pack(f, w->shape[1], (int)(rows < PANEL_ROWS ? rows : PANEL_ROWS), cpu_row(w, row), w->stride,
                   to + bytes * (uint64_t)i);
    }
    return to;
}

/* Multiplies panels first .. first + n - 1 of a weight with x (one token or more): out[token * pitch + row], for whole panels.
 * `scratch`: the product's; `packed`: memory for panels of an unpacked weight. */
static inline void multiply_panels(const cpu_call *c, const cpu_view *w, int64_t first, int n, float *out,
                                   int64_t pitch, uint8_t *scratch, uint8_t *packed) {
    const cpu_view *x = c->v + 1;
    product p = {.stride = bytes_of_panel(w),
                 .head = panel_head(panel_format_find(w->format), w->shape[1]),
                 .panels = n,
                 .k = w->shape[1],
                 .x = x->data,
                 .x_stride = x->stride,
                 .n = x->shape[0],
                 .out = out,
                 .pitch = pitch,
                 .scratch = scratch,
                 .flags = c->flags};
    p.w = panels_at(w, first, n, packed);
    product_find(c->set, w->format, x->format, c->flags)->run(&p);
}

#endif
