/* tq1_0: words 0-7: digits of numbers 0-159, group g in digit g; 8-11: of 160-239; 12: of the last 16; the tail half is d.
 * Digits are 1 too high. */
typedef uint16_t vh
    __attribute__((vector_size(4 * LANES))); /* no product of 16 bits here overflows into its neighbour */

/* Digit k of each byte. */
VI_INLINE vi digits_at(vi x, int k) {
    static const uint16_t power[5] = {1, 3, 9, 27, 81};
    vh even = ((vh)x & 255) * power[k] & 255, odd = ((vh)x >> 8) * power[k] & 255;
    return (vi)((even * 3 >> 8) | (odd * 3 & 0x0300));
}

VI_INLINE void tq1_0_panel_scales(const uint8_t *words, const uint8_t *tail, scales_256 *s) {
    (void)words;
    one_scale(tail, s);
}

VI_INLINE void tq1_0_panel_codes(const uint8_t *words, int g, vi *q) {
    UNROLL_FOR (int j = 0; j < 8; j++)
        if (g < 5)
            q[j] = digits_at(word(words, j), g);
        else if (g < 7 || j < 4)
            q[j] = digits_at(word(words, 8 + j % 4), 2 * (g - 5) + j / 4);
        else
            q[j] = digits_at(word(words, 12), j - 4);
}

WIDE_256(tq1_0, 8, 1, 0)
#define PRODUCT_tq1_0 ENTRY_256(tq1_0)
