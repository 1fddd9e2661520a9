/* iq1_s: words 0-7: the lower bits of the points, a word to a group; 8-11: for each group a half with their upper bits, its
 * scale and its shift; the tail half is d, in eighths. Codes are eight times a coordinate plus or minus 1, and 9 too high. */
VI_INLINE void iq1_s_panel_scales(const uint8_t *words, const uint8_t *tail, scales_256 *s) {
    UNROLL_FOR (int g = 0; g < 8; g++)
        s->scale[g] = (vi_shift_right(word(words, 8 + g / 2), 12 + 16 * (g % 2)) & 7) * 2 + 1;
    scale_pairs(s, 8);
    s->d = vf_load_f16((const uint16_t *)tail) * vf_set(0.125f);
}

VI_INLINE void iq1_s_panel_codes(const uint8_t *words, int g, vi *q) {
    vi low = word(words, g), half = vi_shift_right(word(words, 8 + g / 2), 16 * (g % 2)) & 0xFFFF;
    vi lift = ((vi_shift_right(half, 15) - 1) & 0x02020202);
    UNROLL_FOR (int i = 0; i < 4; i++) {
        vi high = i < 3 ? half << (8 - 3 * i) : vi_shift_right(half, 1);
        iq1_codes(vi_gather(points_iq1_s, vi_byte(low, i) | (high & 0x700)), lift, q + 2 * i);
    }
}

WIDE_256(iq1_s, 8, 9, 0)
#define PRODUCT_iq1_s ENTRY_256(iq1_s)
