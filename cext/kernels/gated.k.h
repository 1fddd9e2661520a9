/* gated.k.h: SwiGLU and GELU of one element, for the kernels that fuse them. */
#ifndef SATCHEL_GATED_K_H
#define SATCHEL_GATED_K_H

#include "port.h"

/* gate * sigmoid(gate) * up */
FN float gated(float gate, float up) {
    return gate / (1.0f + expf(-gate)) * up;
}

/* Limited SwiGLU (gpt-oss). A NaN stays one, as in the definition: fminf would drop it. */
FN float gated_within(float gate, float up, float limit, float alpha) {
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
    return gate / (1.0f + expf(-alpha * gate)) * (up + 1.0f);
}

/* 1 - erf(x), by Chebyshev's fit to 1e-7 of itself (Press et al., Numerical Recipes, 6.2). */
FN float erfc_of(float x) {
    float a = fabsf(x), t = 1.0f / (1.0f + 0.5f * a), p = 0.17087277f;
    p = -0.82215223f + t * p;
    p = 1.48851587f + t * p;
    p = -1.13520398f + t * p;
    p = 0.27886807f + t * p;
    p = -0.18628806f + t * p;
    p = 0.09678418f + t * p;
    p = 0.37409196f + t * p;
    p = 1.00002368f + t * p;
    p = t * expf(-a * a - 1.26551223f + t * p);
    return x < 0 ? 2.0f - p : p;
}

/* By the logistic function that its tanh is, or by the error function of the other tail, where 1 + erf would cancel. */
FN float gelu_of(float x, int style) {
    return style ? 0.5f * x * erfc_of(-0.70710678f * x) : x / (1.0f + expf(-1.5957691f * (x + 0.044715f * x * x * x)));
}

#endif
