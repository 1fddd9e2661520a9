/* iq2_s: words 0-7: the lower bits of the points, a word to a group; 8-15: signs, rearranged: bit j of byte i is that of
 * code 4 j + i; 16-17: the points' upper bits; 18-19: scales of 16, a nibble each; the tail half is d, in eighths. */
VI_INLINE void iq2_s_panel_scales(const uint8_t *words, const uint8_t *tail, scales_256 *s) {
    nibble_scales(words, tail, 18, s);
}

VI_INLINE void iq2_s_panel_codes(const uint8_t *words, int g, vi *q) {
    vi low = word(words, g), signs = word(words, 8 + g), high = vi_byte(word(words, 16 + g / 4), g % 4);
    UNROLL_FOR (int i = 0; i < 4; i++)
        iq2_coordinates(vi_gather(points_iq2_s, vi_byte(low, i) | (high << (8 - 2 * i) & 0x300)), signs, 2 * i,
                        2 * i + 1, q + 2 * i);
}

WIDE_256(iq2_s, 16, IQ_LIFT, 0)
#define PRODUCT_iq2_s ENTRY_256(iq2_s)
