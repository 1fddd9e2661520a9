/* elementwise.h: row functions that several kernels share (norm, SwiGLU), and scalar activation functions. */
#ifndef SATCHEL_CPU_ELEMENTWISE_H
#define SATCHEL_CPU_ELEMENTWISE_H

#include <math.h>

#include "simd/simd.h"

/* y = x / sqrt(mean(x^2) + eps) * w over n numbers; y may be x. Four sums of LANES each, added in a fixed order. */
static inline void row_rms_norm(const float *x, const float *w, float eps, float *y, int n) {
    vf s[4] = {vf_set(0), vf_set(0), vf_set(0), vf_set(0)};
    int i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int j = 0; j < 4; j++) {
            vf a = vf_load(x + i + LANES * j);
            s[j] = vf_fma(a, a, s[j]);
        }
    for (int left; (left = n - i) > 0; i += LANES) {
        vf a = left < LANES ? vf_load_n(x + i, left) : vf_load(x + i);
        s[0] = vf_fma(a, a, s[0]);
    }
    vf root = vf_set(sqrtf(vf_sum((s[0] + s[1]) + (s[2] + s[3])) / (float)n + eps));
    for (i = 0; i + LANES <= n; i += LANES)
        vf_store(y + i, vf_load(x + i) / root * vf_load(w + i));
    if (i < n)
        vf_store_n(y + i, vf_load_n(x + i, n - i) / root * vf_load_n(w + i, n - i), n - i);
}

static inline vf vf_load_most(const float *x, int left) {
    return left < LANES ? vf_load_n(x, left) : vf_load(x);
}

static inline void vf_store_most(float *y, vf x, int left) {
    if (left < LANES)
        vf_store_n(y, x, left);
    else
        vf_store(y, x);
}

/* Sum of n numbers, or of their squares; two of LANES each, added in a fixed order. */
static inline float row_sum(const float *x, int n, int squares) {
    vf s[2] = {vf_set(0), vf_set(0)};
    for (int i = 0, j = 0; i < n; i += LANES, j ^= 1) {
        vf a = vf_load_most(x + i, n - i);
        s[j] = vf_fma(a, squares ? a : vf_set(1), s[j]);
    }
    return vf_sum(s[0] + s[1]);
}

/* y = (x - mean) / sqrt(variance + eps) * w + b over n numbers; b may be NULL, y may not be x. */
static inline void row_layer_norm(const float *x, const float *w, const float *b, float eps, float *y, int n) {
    vf mean = vf_set(row_sum(x, n, 0) / (float)n), root;
    for (int i = 0; i < n; i += LANES)
        vf_store_most(y + i, vf_load_most(x + i, n - i) - mean, n - i);
    root = vf_set(sqrtf(row_sum(y, n, 1) / (float)n + eps));
    for (int i = 0; i < n; i += LANES) {
        vf a = vf_load_most(y + i, n - i) / root * vf_load_most(w + i, n - i);
        if (b)
            a = a + vf_load_most(b + i, n - i);
        vf_store_most(y + i, a, n - i);
    }
}

/* x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3): as x / 2 (1 + tanh u), and no digit lost. */
static inline vf vf_gelu_tanh(vf x) {
    vf u = vf_set(-1.59576912f) * vf_fma(x * x * vf_set(0.044715f), x, x);
    return x / (vf_set(1) + vf_exp(u));
}

/* erf to 1.5e-7 (Abramowitz & Stegun, 7.1.26); e^-x^2 below e^-80 changes nothing. */
static inline vf vf_gelu_erf(vf x) {
    vf z = x * vf_set(0.707106781f), size = vf_max(z, vf_set(0) - z),
       t = vf_set(1) / vf_fma(size, vf_set(0.3275911f), vf_set(1));
    vf y = vf_fma(t, vf_set(1.061405429f), vf_set(-1.453152027f)), rest;
    y = vf_fma(t, y, vf_set(1.421413741f));
    y = vf_fma(t, y, vf_set(-0.284496736f));
    y = vf_fma(t, y, vf_set(0.254829592f));
    rest = vf_set(0.5f) * y * t * vf_exp(vf_max(vf_set(-80.0f), vf_set(0) - z * z)); /* half of 1 - erf |z| */
    return x * vf_where((vf_mask)(z < vf_set(0)), rest, vf_set(1) - rest);
}

/* y = gate / (1 + e^-gate) * up */
static inline vf vf_swiglu(vf gate, vf up) {
    return gate / (vf_set(1) + vf_exp(vf_set(0) - gate)) * up;
}

/* y = gate / (1 + e^(-alpha gate)) * (up + 1) of a gate up to limit and an up within it */
static inline vf vf_limited(vf gate, vf up, vf limit, vf alpha) {
    gate = vf_min(gate, limit);
    up = vf_max(vf_min(up, limit), vf_set(0) - limit);
    return gate / (vf_set(1) + vf_exp(vf_set(0) - alpha * gate)) * (up + vf_set(1));
}

static inline void row_limited(const float *gate, const float *up, float *y, int n, float limit, float alpha) {
    vf most = vf_set(limit), slope = vf_set(alpha);
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        vf_store(y + i, vf_limited(vf_load(gate + i), vf_load(up + i), most, slope));
    if (i < n)
        vf_store_n(y + i, vf_limited(vf_load_n(gate + i, n - i), vf_load_n(up + i, n - i), most, slope), n - i);
}

static inline void row_swiglu(const float *gate, const float *up, float *y, int n) {
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        vf_store(y + i, vf_swiglu(vf_load(gate + i), vf_load(up + i)));
    if (i < n)
        vf_store_n(y + i, vf_swiglu(vf_load_n(gate + i, n - i), vf_load_n(up + i, n - i)), n - i);
}

#endif
