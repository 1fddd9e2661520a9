/* functions.h: sine, cosine, exponential and logarithm of our own: those of C libraries differ in the last bit from system to
 * system, and an answer must not. They compute in double, whose operations are the same everywhere, by power series whose rest
 * is below 2^-32 of the result, and round once. There are no branches, so loops over them are vectorized.
 */
#ifndef SATCHEL_CPU_FUNCTIONS_H
#define SATCHEL_CPU_FUNCTIONS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define OWN_LN2 0x1.62e42fefa39efp-1
#define OWN_NEAREST 0x1.8p52 /* added to a small double: the sum's lowest bits are the nearest integer */

static inline uint64_t own_bits(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline double own_double(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* yes ? a : b, without a branch: compilers keep one that has arithmetic behind it, which may trap. */
static inline double own_where(int yes, double a, double b) {
    const uint64_t all = 0 - (uint64_t)yes;
    return own_double((own_bits(a) & all) | (own_bits(b) & ~all));
}

/* sin x and cos x for |x| < 2^30, NaN for others. x is reduced by multiples of pi/2, held in three parts (Cody and Waite, "Software Manual for
 * the Elementary Functions", 1980): products with the first two, of 23 bits each, are exact. */
static inline void own_sin_cos(float x, float *s, float *c) {
    const double in = own_where(fabsf(x) < 0x1p30f, x, NAN), shifted = in * 0x1.45f306dc9c883p-1 + OWN_NEAREST,
                 quarters = shifted - OWN_NEAREST,
                 r = in - quarters * 0x1.921fb4p+0 - quarters * 0x1.4442dp-24 - quarters * 0x1.8469898cc5170p-48,
                 z = r * r,
                 sine = r + r * z *
                                (-1.0 / 6 +
                                 z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 - z * (1.0 / 39916800))))),
                 cosine = 1 + z * (-0.5 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 - z * (1.0 / 3628800)))));
    const uint64_t quarter = own_bits(shifted), odd = 0 - (quarter & 1), a = own_bits(sine), b = own_bits(cosine);
    *s = (float)own_double(((a & ~odd) | (b & odd)) ^ (quarter & 2) << 62);
    *c = (float)own_double(((b & ~odd) | (a & odd)) ^ ((quarter + 1) & 2) << 62);
}

/* e^x for |x| < 700: 2^n times the series of the rest, which is at most ln(2)/2. */
static inline double own_exp(double x) {
    const double shifted = x * (1 / OWN_LN2) + OWN_NEAREST, r = x - (shifted - OWN_NEAREST) * OWN_LN2,
                 low = 1 + r * (1 + r * (1.0 / 2 + r * (1.0 / 6))),
                 high = 1.0 / 24 +
                        r * (1.0 / 120 + r * (1.0 / 720 + r * (1.0 / 5040 + r * (1.0 / 40320 + r * (1.0 / 362880)))));
    return (low + r * r * (r * r) * high) * own_double((own_bits(shifted) + 1023) << 52);
}

/* ln(1 + x) for a float x from 0 on. 1 + x = 2^n m with m from sqrt(1/2) to sqrt(2), and ln m = 2 artanh((m - 1) / (m + 1)). What
 * 1 + x loses to rounding counts where x is small, and there it is the logarithm's own loss. */
static inline float own_log1p(float x) {
    const double u = 1 + (double)x, lost = own_where(x < 1, x - (u - 1), 0);
    const uint64_t root = own_bits(0x1.6a09e667f3bcdp-1), power = (own_bits(u) - root) & 0x7FF0000000000000;
    const double m = own_double(own_bits(u) - power), s = (m - 1) / (m + 1), z = s * s;
    /* The power of two as a double: its number stands in the lowest bits of 2^52's. */
    const double n = own_double((power >> 52) | 0x4330000000000000) - 0x1p52,
                 sum = 2 * s * (1 + z * (1.0 / 3 + z * (1.0 / 5 + z * (1.0 / 7 + z * (1.0 / 9 + z * (1.0 / 11))))));
    return (float)(n * OWN_LN2 + sum + lost);
}

/* ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|), which does not overflow and keeps small results accurate. */
static inline float own_softplus(float x) {
    const float size = fabsf(x); /* e^-110 is 0 as a float */
    return (float)own_where(x > 0, x, 0) + own_log1p((float)own_exp(own_where(size > 110, -110, -size)));
}

#endif
