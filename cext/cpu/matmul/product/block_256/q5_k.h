/* q5_k: words 0-3 as in q4_k; 4-11: fifth bits, that of group g at bit g of each byte; 12-43: the low four. */
VI_INLINE void q5_k_panel_scales(const uint8_t *words, const uint8_t *tail, scales_256 *s) {
    (void)tail;
    k_scales_and_minimums(words, s);
}

VI_INLINE void q5_k_panel_codes(const uint8_t *words, int g, vi *q) {
    UNROLL_FOR (int j = 0; j < 8; j++) {
        vi low = vi_shift_right(word(words, 12 + 8 * (g / 2) + j), 4 * (g % 2)) & 0x0F0F0F0F;
        vi bits = word(words, 4 + j), fifth = g < 4 ? bits << (4 - g) : vi_shift_right(bits, g - 4);
        q[j] = low | (fifth & 0x10101010);
    }
}

PRODUCT_256(q5_k, 8, 0, 31)
#define PRODUCT_q5_k ENTRY_256(q5_k)
