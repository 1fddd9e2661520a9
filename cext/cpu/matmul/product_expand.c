/* product_expand.c: products of dequantized weights, for all families, and the formats that have only these. */
#include "product_expand.h"
#include "weights/panel.h"
#if defined(__AMX_BF16__)
#include "amx_f8.h"
#endif

enum { SLICE = 256, RUN = 64, TWO_PARTS = LANE_PARTS > 1 ? 2 : 1 };
_Static_assert(sizeof(float) * 16 * SLICE <= WEIGHTS_BYTES, "a slice fits the scratch of unpacked weights");

/* Dot products over `chains` consecutive runs of `numbers` elements, for some lanes and n columns `x_pitch` floats apart. The
 * runs are summed independently and then added to `out`, run by run. */
VI_INLINE void expand_runs(const float *w, int numbers, const float *x, int64_t x_pitch, float *out, int64_t pitch,
                           int n, int chains) {
    vf sum[MOST_COLUMNS][4][TWO_PARTS];
    UNROLL_FOR (int j = 0; j < n * chains * TWO_PARTS; j++)
        sum[j / TWO_PARTS / chains][j / TWO_PARTS % chains][j % TWO_PARTS] = vf_set(0);
    for (int k = 0; k < numbers; k++)
        UNROLL_FOR (int j = 0; j < n * chains; j++) {
            int run = RUN * (j % chains);
            vf a = vf_set(x[x_pitch * (j / chains) + run + k]);
            UNROLL_FOR (int i = 0; i < TWO_PARTS; i++)
                sum[j / chains][j % chains][i] =
                    vf_fma(vf_load(w + 16 * (run + k) + LANES * i), a, sum[j / chains][j % chains][i]);
        }
    UNROLL_FOR (int c = 0; c < n; c++)
        UNROLL_FOR (int i = 0; i < TWO_PARTS; i++) {
            vf all = vf_load(out + pitch * c + LANES * i);
            UNROLL_FOR (int j = 0; j < chains; j++)
                all += sum[c][j][i];
            vf_store(out + pitch * c + LANES * i, all);
        }
}

/* Adds the dot products of `numbers` elements of a panel and n columns to the sums in `out`. Few columns process several
 * runs at a time, because a single chain of additions is latency-bound. */
VI_INLINE void expand_columns(const float *w, int numbers, const float *x, int64_t x_pitch, float *out, int64_t pitch,
                              int n) {
    int chains = n < 3 ? 4 : n < 5 ? 2 : 1;
    for (int part = 0; part < LANE_PARTS; part += TWO_PARTS) {
        const float *weights = w + LANES * part;
        int k = 0;
        for (; k + RUN * chains <= numbers; k += RUN * chains)
            expand_runs(weights + 16 * k, RUN, x + k, x_pitch, out + LANES * part, pitch, n, chains);
        for (; k < numbers; k += RUN)
            expand_runs(weights + 16 * k, numbers - k < RUN ? numbers - k : RUN, x + k, x_pitch, out + LANES * part,
                        pitch, n, 1);
    }
}

typedef void (*expand_fn)(const float *w, int numbers, const float *x, int64_t x_pitch, float *out, int64_t pitch);
#define EXPAND_FUNCTION(stem, size)                                                                                    \
    static void stem##_columns##size(const float *w, int numbers, const float *x, int64_t x_pitch, float *out,         \
                                     int64_t pitch) {                                                                  \
        expand_columns(w, numbers, x, x_pitch, out, pitch, size);                                                      \
    }
COLUMN_SIZES(EXPAND_FUNCTION, expanded)
static const expand_fn expand_passes[MOST_COLUMNS + 1] = COLUMN_TABLE(expanded);

/* Dequantizes elements k .. k + numbers - 1 of a panel. */
static void expand_slice(const product *p, const expand_format *f, int panel, int64_t k, int numbers, float *to) {
    const uint8_t *base = p->w + p->stride * (uint64_t)panel;
    for (int64_t b = k / f->block; b < (k + numbers) / f->block; b++, to += 16 * f->block)
        for (int part = 0; part < LANE_PARTS; part++)
            f->expand(base + p->head + f->bytes * (uint64_t)b + 4 * LANES * part,
                      base + f->tail * (16 * b + LANES * part), to + LANES * part);
}

/* Converts the same elements of n columns of bfloat16 to float32. */
static void floats_of(const product *p, int column, int n, int64_t k, int numbers, float *to) {
    for (int c = 0; c < n; c++, to += SLICE) {
        const uint16_t *x = (const uint16_t *)(p->x + p->x_stride * (uint64_t)(column + c)) + k;
        for (int i = 0; i < numbers; i += LANES)
            vf_store(to + i, vf_load_bf16(x + i));
    }
}

/* One slice of a panel times all columns. */
static void expand_panel(const product *p, const expand_format *f, int panel, int64_t k, int is_bf16) {
    int numbers = (int)(p->k - k < SLICE ? p->k - k : SLICE);
    float *w = (float *)(void *)p->scratch, x[MOST_COLUMNS * SLICE];
    expand_slice(p, f, panel, k, numbers, w);
    for (int from = 0, size; from < p->n; from += size) {
        const float *floats = (const float *)(p->x + p->x_stride * (uint64_t)from) + k;
        size = pass_size(p->n - from);
        if (is_bf16)
            floats_of(p, from, size, k, numbers, x);
        expand_passes[size](w, numbers, is_bf16 ? x : floats, is_bf16 ? SLICE : (int64_t)(p->x_stride / sizeof(float)),
                            p->out + p->pitch * from + 16 * panel, p->pitch);
    }
}

void CPU_NAME(expand_product)(const product *p, const expand_format *f, int is_bf16) {
    int64_t slices = (p->k + SLICE - 1) / SLICE;
    for (int c = 0; c < p->n; c++)
        memset(p->out + p->pitch * c, 0, sizeof(float) * 16 * (size_t)p->panels);
    for (int64_t i = 0; i < slices * p->panels; i++)
        if (p->n > MANY)
            expand_panel(p, f, (int)(i % p->panels), i / p->panels * SLICE, is_bf16);
        else
            expand_panel(p, f, (int)(i / slices), i % slices * SLICE, is_bf16);
}

#include "products_expand.inc"

PRODUCT_FAMILY(expand) = {
#include "products_expand_table.inc"
};
