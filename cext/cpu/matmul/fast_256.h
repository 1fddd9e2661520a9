/* fast_256.h: products of super-blocks of 256 for many columns under HAL_FAST (--precision fast): weights are requantized to
 * int8 with one scale per row and super-block, so the inner loop has neither group scales nor minimums.
 *
 * The scale is the largest magnitude that the groups' scales and minimums allow, over 127. Results differ from the exact
 * products' and from those for few columns.
 */
#ifndef SATCHEL_CPU_FAST_256_H
#define SATCHEL_CPU_FAST_256_H

enum { FAST_COLUMNS = 32 /* with fewer columns, requantizing costs more than it saves */, CODES_256 = 64 * LINE };

/* scale and low of a group of 16, whose code q has the value scale * q - low. */
VI_INLINE void group_line(const scales_256 *s, int groups, int offset, int half, vf *scale, vf *low) {
    vi min = s->pairs[half / 4];
    *scale = s->d * vi_to_vf(s->scale[half * groups / 16]);
    *low = offset ? *scale * vf_set((float)offset)
                  : s->min * vi_to_vf(half / 2 % 2 ? vi_shift_right(min, 16) : min & 0xFFFF);
}

VI_INLINE vf vf_abs(vf x) {
    return (vf)((vi)x & 0x7FFFFFFF);
}

/* Requantizes the four codes of each lane to signed bytes: scale * code - low, both divided by the new scale. */
VI_INLINE vi round_codes(vi q, vf scale, vf low) {
    vf base = vf_set(12582912.0f) - low; /* 1.5 * 2^23: the sum's low byte is the rounded integer */
    vi out = vi_set(0);
    UNROLL_FOR (int i = 0; i < 4; i++)
        out |= ((vi)vf_fma(vi_to_vf(vi_byte(q, i)), scale, base) & 255) << (8 * i);
    return out;
}

#define FAST_256(stem, groups, offset, most)                                                                           \
    static vf stem##_round(const uint8_t *words, const uint8_t *tail, uint8_t *codes) {                                \
        scales_256 s;                                                                                                  \
        vf scale[16], low[16], top = vf_set(0), inverse;                                                               \
        stem##_panel_scales(words, tail, &s);                                                                          \
        UNROLL_FOR (int h = 0; h < 16; h++) {                                                                          \
            group_line(&s, groups, offset, h, scale + h, low + h);                                                     \
            top = vf_max(top, vf_max(vf_abs(low[h]), vf_abs(scale[h] * vf_set(most) - low[h])));                       \
        }                                                                                                              \
        inverse = vf_set(127) / vf_max(top, vf_set(1e-30f));                                                           \
        for (int g = 0; g < 8; g++) {                                                                                  \
            vi q[8];                                                                                                   \
            stem##_panel_codes(words, g, q);                                                                           \
            UNROLL_FOR (int j = 0; j < 8; j++) {                                                                       \
                int h = 2 * g + j / 4;                                                                                 \
                vi_store(codes + LINE * (8 * g + j), round_codes(q[j], scale[h] * inverse, low[h] * inverse));         \
            }                                                                                                          \
        }                                                                                                              \
        return top / vf_set(127);                                                                                      \
    }                                                                                                                  \
    static void stem##_fast(const product *p) {                                                                        \
        fast_begin(p);                                                                                                 \
        clear_sums(p);                                                                                                 \
        for (int64_t b = 0; b < p->k / 256; b++)                                                                       \
            for (int first = 0; first < p->panels; first += TOGETHER) {                                                \
                int panels = panels_from(p, first);                                                                    \
                vf d[TOGETHER * LANE_PARTS];                                                                           \
                for (int i = 0; i < panels * LANE_PARTS; i++) {                                                        \
                    const uint8_t *panel = p->w + p->stride * (uint64_t)(first + i / LANE_PARTS);                      \
                    int at = LANES * (i % LANE_PARTS);                                                                 \
                    d[i] = stem##_round(panel + p->head + sizeof(block_##stem) / 4 * LINE * (uint64_t)b + 4 * at,      \
                                        panel + 32 * b + 2 * at, p->scratch + CODES_256 * (i / LANE_PARTS) + 4 * at);  \
                }                                                                                                      \
                fast_block(p, first, b, d, panels);                                                                    \
            }                                                                                                          \
        write_sums(p);                                                                                                 \
        fast_end();                                                                                                    \
    }

#if defined(__AMX_INT8__)
static void fast_begin(const product *p) {
    amx_begin(columns_a_tile(p), 64);
}

static void fast_end(void) {
    amx_end();
}

VI_INLINE void fast_multiply(const uint8_t *x, uint64_t x_stride, const uint8_t *codes, int panels, uint8_t *results) {
    _tile_zero(0);
    _tile_zero(1);
    UNROLL_FOR (int k = 0; k < 4; k++) {
        _tile_loadd(4, x + 64 * k, x_stride);
        _tile_loadd(6, codes + TILE_BYTES * k, LINE);
        _tile_dpbssd(0, 4, 6);
        if (panels == 1)
            continue;
        _tile_loadd(7, codes + CODES_256 + TILE_BYTES * k, LINE);
        _tile_dpbssd(1, 4, 7);
    }
    _tile_stored(0, results, LINE);
    _tile_stored(1, results + TILE_BYTES, LINE);
}

/* The number of columns is at most 16 or a multiple of 16: see amx_cut. */
static void fast_block(const product *p, int first, int64_t block, const vf *d, int panels) {
    const uint8_t *x = p->x + sizeof(block_a8_256) * (uint64_t)block;
    uint8_t *results = p->scratch + WEIGHTS_BYTES;
    float *sums = sums_of(p, first);
    int columns = columns_a_tile(p);
    uint64_t step = p->x_stride * (uint64_t)columns;
    fast_multiply(x, p->x_stride, p->scratch, panels, results);
    for (int done = 0; done < p->n; done += columns, x += step) {
        const uint8_t *ready = results + 2 * TILE_BYTES * (done / TILE % 2);
        if (done + columns < p->n)
            fast_multiply(x + step, p->x_stride, p->scratch, panels,
                          results + 2 * TILE_BYTES * ((done / TILE + 1) % 2));
        for (int c = 0; c < columns; c++, sums += 16 * TOGETHER)
            for (int i = 0; i < panels; i++) {
                vf dx = vf_set(((const block_a8_256 *)(x + p->x_stride * (uint64_t)c))->d);
                vf sum = vi_to_vf(vi_load(ready + TILE_BYTES * i + LINE * c));
                vf_store(sums + 16 * i, vf_fma(sum, d[i] * dx, vf_load(sums + 16 * i)));
            }
    }
}
#else
static void fast_begin(const product *p) {
    (void)p;
}

static void fast_end(void) {}

VI_INLINE void fast_columns(const uint8_t *x, uint64_t x_stride, const uint8_t *codes, vf d, float *sums, int n) {
    vi sum[MOST_COLUMNS];
    UNROLL_FOR (int c = 0; c < n; c++) {
        const block_a8_256 *a = (const block_a8_256 *)(x + x_stride * (uint64_t)c);
        int32_t all = 0;
        for (int g = 0; g < 8; g++)
            all += a->sums32[g];
        sum[c] = start_signed(all);
    }
    for (int j = 0; j < 64; j++) {
        vi w = sign_codes(vi_load(codes + LINE * j));
        UNROLL_FOR (int c = 0; c < n; c++)
            sum[c] = dot4_signed(sum[c], w, vi_set_at(x + x_stride * (uint64_t)c + 4 * j));
    }
    UNROLL_FOR (int c = 0; c < n; c++) {
        vf dx = vf_set(((const block_a8_256 *)(x + x_stride * (uint64_t)c))->d);
        float *to = sums + 16 * TOGETHER * c;
        vf_store(to, vf_fma(vi_to_vf(sum[c]), d * dx, vf_load(to)));
    }
}

static void fast_block(const product *p, int first, int64_t block, const vf *d, int panels) {
    const uint8_t *x = p->x + sizeof(block_a8_256) * (uint64_t)block;
    for (int c = 0; c < p->n; c += MOST_COLUMNS)
        for (int i = 0; i < panels * LANE_PARTS; i++) {
            int panel = i / LANE_PARTS, part = i % LANE_PARTS, left = p->n - c;
            const uint8_t *codes = p->scratch + CODES_256 * panel + 4 * LANES * part;
            const uint8_t *from = x + p->x_stride * (uint64_t)c;
            float *sums = sums_of(p, first) + 16 * (TOGETHER * c + panel) + LANES * part;
            if (left >= MOST_COLUMNS)
                fast_columns(from, p->x_stride, codes, d[i], sums, MOST_COLUMNS);
            else
                for (int j = 0; j < left; j++)
                    fast_columns(from + p->x_stride * (uint64_t)j, p->x_stride, codes, d[i], sums + 16 * TOGETHER * j,
                                 1);
        }
}
#endif

#endif
