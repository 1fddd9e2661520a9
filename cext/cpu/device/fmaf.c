/* fmaf.c: a correctly rounded fmaf for MinGW, whose C library rounds twice. The product is exact in double. The sum is rounded
 * to odd in double (its last bit is set if it is inexact), so the final rounding to float is correct (Boldo and Melquiond,
 * "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

float fmaf(float a, float b, float c) {
    double product = (double)a * b, sum = product + c, of_c, error;
    int64_t bits;
    if (!isfinite(sum))
        return (float)sum;
    of_c = sum - product;
    error = (product - (sum - of_c)) + (c - of_c); /* Knuth's TwoSum */
    memcpy(&bits, &sum, sizeof bits);
    if (error != 0 && !(bits & 1)) {
        bits += (error > 0) == (sum > 0) ? 1 : -1;
        memcpy(&sum, &bits, sizeof sum);
    }
    return (float)sum;
}
