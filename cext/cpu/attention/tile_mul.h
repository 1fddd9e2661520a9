/* tile_mul.h: matrix product of small float32 matrices in a thread's scratch: C (m, n) = f C + A (m, k) B (k, n).
 *
 * Register tiling: a block of up to TILE_M rows by TILE_N vectors of C stays in registers over k. Each element of C is summed
 * over k in order, by one fused multiply-add each, so it does not depend on the other rows and columns.
 */
#ifndef SATCHEL_CPU_TILE_MUL_H
#define SATCHEL_CPU_TILE_MUL_H

#include <stdint.h>

#include "simd/simd.h"

#define TILE_INLINE static inline __attribute__((always_inline))
#if LANES == 16 || defined(__aarch64__)
#define TILE_M 6
#define TILE_N 4 /* of 32 registers: 24 accumulators, 4 for B, 1 for A */
#elif LANES == 8
#define TILE_M 6
#define TILE_N 2 /* of 16 */
#else
#define TILE_M 4
#define TILE_N 2
#endif

/* Row-major, the pitch in floats; B and C are read in whole vectors. */
typedef struct {
    const float *a, *b;
    float *c;
    int64_t a_pitch, b_pitch, c_pitch;
    int k;
    const float *keep; /* f of each computed row of C; NULL: f = 0 */
} tile_product;

TILE_INLINE void tile_block(const tile_product *p, int row, int at, int m, int n) {
    const float *a = p->a + row * p->a_pitch, *b = p->b + at;
    float *c = p->c + row * p->c_pitch + at;
    vf sum[TILE_M][TILE_N];
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            sum[i][j] = vf_set(0);
            if (p->keep)
                sum[i][j] = vf_load(c + i * p->c_pitch + j * LANES) * vf_set(p->keep[i]);
        }
    for (int64_t k = 0; k < p->k; k++, b += p->b_pitch) {
        vf x[TILE_N];
#pragma GCC unroll 4
        for (int j = 0; j < n; j++)
            x[j] = vf_load(b + j * LANES);
#pragma GCC unroll 6
        for (int i = 0; i < m; i++) {
            vf y = vf_set(a[i * p->a_pitch + k]);
#pragma GCC unroll 4
            for (int j = 0; j < n; j++)
                sum[i][j] = vf_fma(y, x[j], sum[i][j]);
        }
    }
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
            vf_store(c + i * p->c_pitch + j * LANES, sum[i][j]);
}

TILE_INLINE void tile_columns(const tile_product *p, int row, int vectors, int m) {
    int j = 0;
    for (; j + TILE_N <= vectors; j += TILE_N)
        tile_block(p, row, j * LANES, m, TILE_N);
    if (TILE_N > 2 && j + 2 <= vectors) {
        tile_block(p, row, j * LANES, m, 2);
        j += 2;
    }
    if (j < vectors)
        tile_block(p, row, j * LANES, m, 1);
}

/* Computes `m` rows (1 to TILE_M) of C from `row` on, `vectors` vectors wide. */
static void tile_rows(const tile_product *p, int row, int m, int vectors) {
    switch (m) {
    case 1:
        tile_columns(p, row, vectors, 1);
        break;
    case 2:
        tile_columns(p, row, vectors, 2);
        break;
    case 3:
        tile_columns(p, row, vectors, 3);
        break;
    case 4:
        tile_columns(p, row, vectors, 4);
        break;
#if TILE_M > 4
    case 5:
        tile_columns(p, row, vectors, 5);
        break;
    default:
        tile_columns(p, row, vectors, 6);
#endif
    }
}

/* Rows of the next block, of `left` remaining ones: blocks have about equal sizes. */
static inline int tile_step(int left) {
    int parts = (left + TILE_M - 1) / TILE_M;
    return (left + parts - 1) / parts;
}

static inline void tile_multiply(const tile_product *p, int m, int vectors) {
    for (int i = 0, step; i < m; i += step) {
        step = tile_step(m - i);
        tile_rows(p, i, step, vectors);
    }
}

/* Transposes LANES rows of `columns` elements, a multiple of LANES: to[c * to_pitch + r] = from[r * pitch + c]. */
static inline void tile_transpose(const float *from, int64_t pitch, float *to, int64_t to_pitch, int columns) {
#if LANES == 16
    for (int c = 0; c < columns; c += 4, from += 4, to += 4 * to_pitch) {
        __m512 v[4];
        for (int i = 0; i < 4; i++) {
            const float *x = from + i * pitch;
            v[i] = _mm512_castps128_ps512(_mm_loadu_ps(x));
            v[i] = _mm512_insertf32x4(v[i], _mm_loadu_ps(x + 4 * pitch), 1);
            v[i] = _mm512_insertf32x4(v[i], _mm_loadu_ps(x + 8 * pitch), 2);
            v[i] = _mm512_insertf32x4(v[i], _mm_loadu_ps(x + 12 * pitch), 3);
        }
        __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(v[0], v[1])),
                b = _mm512_castps_pd(_mm512_unpackhi_ps(v[0], v[1]));
        __m512d d = _mm512_castps_pd(_mm512_unpacklo_ps(v[2], v[3])),
                e = _mm512_castps_pd(_mm512_unpackhi_ps(v[2], v[3]));
        _mm512_storeu_ps(to, _mm512_castpd_ps(_mm512_unpacklo_pd(a, d)));
        _mm512_storeu_ps(to + to_pitch, _mm512_castpd_ps(_mm512_unpackhi_pd(a, d)));
        _mm512_storeu_ps(to + 2 * to_pitch, _mm512_castpd_ps(_mm512_unpacklo_pd(b, e)));
        _mm512_storeu_ps(to + 3 * to_pitch, _mm512_castpd_ps(_mm512_unpackhi_pd(b, e)));
    }
#elif LANES == 8
    for (int c = 0; c < columns; c += 4, from += 4, to += 4 * to_pitch) {
        __m256 v[4];
        for (int i = 0; i < 4; i++) {
            const float *x = from + i * pitch;
            v[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(x)), _mm_loadu_ps(x + 4 * pitch), 1);
        }
        __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(v[0], v[1])),
                b = _mm256_castps_pd(_mm256_unpackhi_ps(v[0], v[1]));
        __m256d d = _mm256_castps_pd(_mm256_unpacklo_ps(v[2], v[3])),
                e = _mm256_castps_pd(_mm256_unpackhi_ps(v[2], v[3]));
        _mm256_storeu_ps(to, _mm256_castpd_ps(_mm256_unpacklo_pd(a, d)));
        _mm256_storeu_ps(to + to_pitch, _mm256_castpd_ps(_mm256_unpackhi_pd(a, d)));
        _mm256_storeu_ps(to + 2 * to_pitch, _mm256_castpd_ps(_mm256_unpacklo_pd(b, e)));
        _mm256_storeu_ps(to + 3 * to_pitch, _mm256_castpd_ps(_mm256_unpackhi_pd(b, e)));
    }
#else
    for (int c = 0; c < columns; c++)
        for (int r = 0; r < LANES; r++)
            to[c * to_pitch + r] = from[r * pitch + c];
#endif
}

#endif
