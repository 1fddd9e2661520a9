/* softmax.h: vectorized 2^x for softmax weights, on vectors of simd.h.
 *
 * Scores are in units of ln 2, so a weight is 2^(score - most), and 2^x needs no argument reduction by ln 2.
 */
#ifndef SATCHEL_CPU_SOFTMAX_H
#define SATCHEL_CPU_SOFTMAX_H

#include "simd/simd.h"

typedef int32_t softmax_bits __attribute__((vector_size(4 * LANES)));

/* 2^x to about one unit in the last place, for x <= 0 or NaN; 0 below -126, because a subnormal weight changes no sum and
 * is a hundred times slower. x = n + r, |r| <= 1/2; 2^r is the minimax polynomial of degree 6 (relative error 2e-9 before
 * rounding). */
static inline vf softmax_power(vf x) {
    softmax_bits none = (softmax_bits)(x < vf_set(-126.0f));
    vf n, r, y;
    x = vf_max(vf_set(-126.0f), x);
    n = vf_round(x);
    r = x - n;
    y = vf_set(0.00015353362f);
    y = vf_fma(y, r, vf_set(0.0013398875f));
    y = vf_fma(y, r, vf_set(0.00961843692f));
    y = vf_fma(y, r, vf_set(0.0555033237f));
    y = vf_fma(y, r, vf_set(0.240226477f));
    y = vf_fma(y, r, vf_set(0.693147182f));
    y = vf_fma(y, r, vf_set(1.0f));
    return (vf)((softmax_bits)vf_scale(y, n) & ~none);
}

/* The largest of LANES floats; with a NaN among them, any of them. */
static inline float softmax_most(vf x) {
#if LANES == 16
    return _mm512_reduce_max_ps(x);
#elif LANES == 8
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
#else
    float a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
    return a > b ? a : b;
#endif
}

#endif
