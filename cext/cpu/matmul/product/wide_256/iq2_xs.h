/* iq2_xs: words 2 g and 2 g + 1: the four points of group g and their signs, rearranged; 16-17: scales of 16, a nibble
 * each; the tail half is d, in eighths. */

/* The signs of two points, four bits to a byte; the eighth ones are bits 26 and 27. */
VI_INLINE vi iq2_xs_signs(vi word) {
    vi signs = vi_shift_right(word, 18), parity;
    signs = (signs | signs << 8) & 0x00FF00FF;
    signs = (signs | signs << 4) & 0x0F0F0F0F;
    parity = signs ^ vi_shift_right(signs, 16);
    parity ^= vi_shift_right(parity, 8);
    return signs | ((parity ^ vi_shift_right(parity, 2)) & 3) << 26;
}

VI_INLINE void iq2_xs_panel_scales(const uint8_t *words, const uint8_t *tail, scales_256 *s) {
    nibble_scales(words, tail, 16, s);
}

VI_INLINE void iq2_xs_panel_codes(const uint8_t *words, int g, vi *q) {
    UNROLL_FOR (int h = 0; h < 2; h++) {
        vi w = word(words, 2 * g + h), signs = iq2_xs_signs(w);
        UNROLL_FOR (int i = 0; i < 2; i++)
            iq2_coordinates(vi_gather(points_iq2_xs, vi_shift_right(w, 9 * i) & 511), signs, i, 2 + i,
                            q + 4 * h + 2 * i);
    }
}

WIDE_256(iq2_xs, 16, IQ_LIFT, 0)
#define PRODUCT_iq2_xs ENTRY_256(iq2_xs)
