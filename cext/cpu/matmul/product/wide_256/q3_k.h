/* q3_k: words 0-7: third bits, that of group g at bit g of each byte; 8-23: pairs of bits; 24-26: scales; the tail half is
 * d. Codes are 4 too high, scales 32. */
VI_INLINE void q3_k_panel_scales(const uint8_t *words, const uint8_t *tail, scales_256 *s) {
    vi high = word(words, 26);
    UNROLL_FOR (int g = 0; g < 16; g++) {
        vi low = vi_byte(word(words, 24 + g / 4 % 2), g % 4), two = vi_shift_right(high, 8 * (g % 4) + 2 * (g / 4)) & 3;
        s->scale[g] = ((vi_shift_right(low, 4 * (g / 8)) & 15) | two << 4) - 32;
    }
    scale_pairs(s, 16);
    s->d = vf_load_f16((const uint16_t *)tail);
}

VI_INLINE void q3_k_panel_codes(const uint8_t *words, int g, vi *q) {
    pairs_of_bits(words, 8, g, q);
    UNROLL_FOR (int j = 0; j < 8; j++)
        q[j] |= (vi_shift_right(word(words, j), g) & 0x01010101) << 2;
}

WIDE_256(q3_k, 16, 4, 0)
#define PRODUCT_q3_k ENTRY_256(q3_k)
