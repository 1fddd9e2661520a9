/* unpack_256.h: unpacks a panel's super-block to bytes of codes (64 lines) and scales, and from those to float32. */
#ifndef SATCHEL_CPU_UNPACK_256_H
#define SATCHEL_CPU_UNPACK_256_H

#include "product_256.h"
#include "product_expand.h"

enum { CODE_BYTES = 64 * LINE };

/* A format's unpacking. unpack processes the lanes at `words`; lines of codes are LINE bytes apart. */
typedef struct {
    void (*unpack)(const uint8_t *words, const uint8_t *tail, scales_256 *, uint8_t *codes);
    uint64_t bytes;                     /* bytes of a panel's super-block, without tails */
    int tail, groups, offset, minimums; /* minimums: equal to groups, or 0 */
} wide_256;

#define WIDE_UNPACK(stem, groups, offset, minimums)                                                                    \
    static void stem##_unpack_lanes(const uint8_t *words, const uint8_t *tail, scales_256 *s, uint8_t *codes) {        \
        stem##_panel_scales(words, tail, s);                                                                           \
        UNROLL_FOR (int g = 0; g < 8; g++) {                                                                           \
            vi q[8];                                                                                                   \
            fetch_part(words, (int)sizeof(block_##stem) / 4 * LINE, g, SEVERAL);                                       \
            stem##_panel_codes(words, g, q);                                                                           \
            UNROLL_FOR (int j = 0; j < 8; j++)                                                                         \
                vi_store(codes + LINE * (8 * g + j), q[j]);                                                            \
        }                                                                                                              \
    }                                                                                                                  \
    static const wide_256 stem##_wide = {                                                                              \
        stem##_unpack_lanes, sizeof(block_##stem) / 4 * LINE, sizeof(block_##stem) % 4, groups, offset, minimums};

/* Dequantizes a super-block from its lines of codes. */
static void expand_256(const wide_256 *f, const uint8_t *codes, const scales_256 *s, float *to) {
    for (int h = 0; h < 16; h++) {
        vf scale = s->d * vi_to_vf(s->scale[h * f->groups / 16]), low = vf_set(-0.0f);
        if (f->minimums) {
            int i = h * f->minimums / 16;
            low = -s->min * vi_to_vf(i % 2 ? vi_shift_right(s->pairs[i / 2], 16) : s->pairs[i / 2] & 0xFFFF);
        }
        for (int j = 4 * h; j < 4 * h + 4; j++) {
            vi q = vi_load(codes + LINE * j);
            UNROLL_FOR (int i = 0; i < 4; i++)
                vf_store(to + 16 * (4 * j + i),
                         vf_fma(scale, code_at(q, i, f->offset), low)); /* scale * code is exact */
        }
    }
}

#define EXPAND_256(stem)                                                                                               \
    static void stem##_expand(const uint8_t *words, const uint8_t *tail, float *to) {                                  \
        _Alignas(64) uint8_t codes[CODE_BYTES];                                                                        \
        scales_256 s;                                                                                                  \
        stem##_unpack_lanes(words, tail, &s, codes);                                                                   \
        expand_256(&stem##_wide, codes, &s, to);                                                                       \
    }                                                                                                                  \
    EXPAND(stem)

#endif
