/* iq1_m: words 0-7: the lower bits of the points, a word to a group; 8-11: for each point a nibble with its upper bits and
 * its shift; 12-13: scales of 16, three bits each, and in the upper four of each half a part of d, in
 * eighths. Codes as in iq1_s. */
VI_INLINE void iq1_m_panel_scales(const uint8_t *words, const uint8_t *tail, scales_256 *s) {
    vi a = word(words, 12), b = word(words, 13);
    vi d = (vi_shift_right(a, 12) & 0xF) | (vi_shift_right(a, 24) & 0xF0) | (vi_shift_right(b, 4) & 0xF00) |
           (vi_shift_right(b, 16) & 0xF000);
    (void)tail;
    UNROLL_FOR (int g = 0; g < 16; g++)
        s->scale[g] = (vi_shift_right(g < 8 ? a : b, 16 * (g / 4 % 2) + 3 * (g % 4)) & 7) * 2 + 1;
    scale_pairs(s, 16);
    s->d = vf_halves(d) * vf_set(0.125f);
}

VI_INLINE void iq1_m_panel_codes(const uint8_t *words, int g, vi *q) {
    vi low = word(words, g), half = vi_shift_right(word(words, 8 + g / 2), 16 * (g % 2)) & 0xFFFF;
    UNROLL_FOR (int i = 0; i < 4; i++) {
        vi nibble = vi_shift_right(half, 4 * i), lift = ((vi_shift_right(nibble, 3) & 1) - 1) & 0x02020202;
        iq1_codes(vi_gather(points_iq1_s, vi_byte(low, i) | (nibble << 8 & 0x700)), lift, q + 2 * i);
    }
}

WIDE_256(iq1_m, 16, 9, 0)
#define PRODUCT_iq1_m ENTRY_256(iq1_m)
