/* exact.h: log, exp and pow of sampling, and its random numbers, bit for bit equal on every machine with IEEE doubles.
 *
 * Series of doubles that use +, -, *, / and rounding alone, in the order of runtime/sampling/exact.py. Compile without
 * contraction (-ffp-contract=off): a fused a * b + c would round differently.
 */
#ifndef SATCHEL_EXACT_H
#define SATCHEL_EXACT_H

#include <math.h>
#include <stdint.h>

/* A target without doubles (Metal) computes them in integers and defines all this itself: cext/metal/f64.metal. */
#ifndef F64_IN_INTEGERS
#include <string.h>

#define LN2 0.6931471805599453
#define SQRT_HALF 0.7071067811865476

static inline uint64_t f64_bits(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline double f64_from_bits(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
#endif

static inline double exact_log(double x) {
    int e;
    double m = frexp(x, &e), s, q, sum = 0;
    if (m < SQRT_HALF) {
        m *= 2;
        e--;
    }
    s = (m - 1) / (m + 1);
    q = s * s;
    for (int k = 23; k > 0; k -= 2)
        sum = sum * q + (double)1 / k;
    return e * LN2 + 2 * s * sum;
}

static inline double exact_exp(double x) {
    double n, r, sum = 1;
    x = x < -700 ? -700 : x > 700 ? 700 : x;
    n = rint(x / LN2);
    r = x - n * LN2;
    for (int k = 17; k > 0; k--)
        sum = sum * r / k + 1.0;
    return ldexp(sum, (int)n);
}

static inline double exact_power(double x, double y) {
    return x <= 0 ? (y == 0 ? 1.0 : 0.0) : exact_exp(y * exact_log(x));
}

/* A uniform random number in [0, 1) of (seed, position): the upper 53 bits of splitmix64's finisher (Steele et al., OOPSLA
 * 2014). */
static inline double uniform(uint64_t seed, int32_t pos) {
    uint64_t z = seed + ((uint64_t)pos + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

#endif
