/* fmaf.c: a * b + c rounded once, for the C library of MinGW, whose own rounds twice. The product is exact in double; the sum
 * is rounded to odd there (its last bit says that something was cut off), so rounding it to float is right (Boldo and
 * Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).
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
