/* q4_k: words 0: d and dmin; 1-3: scales and minimums; 4-35: codes. */
VI_INLINE void k_scales_and_minimums(const uint8_t *words, scales_256 *s) {
    vi first = word(words, 0), low = word(words, 1), mid = word(words, 2), high = word(words, 3);
    vi scale[2] = {low & 0x3F3F3F3F, (high & 0x0F0F0F0F) | (vi_shift_right(low, 2) & 0x30303030)};
    vi min[2] = {mid & 0x3F3F3F3F, (vi_shift_right(high, 4) & 0x0F0F0F0F) | (vi_shift_right(mid, 2) & 0x30303030)};
    UNROLL_FOR (int g = 0; g < 8; g++)
        s->scale[g] = vi_byte(scale[g / 4], g % 4);
    UNROLL_FOR (int i = 0; i < 4; i++)
        s->pairs[i] = byte_pair(min[i / 2], 2 * (i % 2));
    s->d = vf_halves(first);
    s->min = vf_halves(vi_shift_right(first, 16));
}

VI_INLINE void q4_k_panel_scales(const uint8_t *words, const uint8_t *tail, scales_256 *s) {
    (void)tail;
    k_scales_and_minimums(words, s);
}

VI_INLINE void q4_k_panel_codes(const uint8_t *words, int g, vi *q) {
    UNROLL_FOR (int j = 0; j < 8; j++)
        q[j] = vi_shift_right(word(words, 4 + 8 * (g / 2) + j), 4 * (g % 2)) & 0x0F0F0F0F;
}

PRODUCT_256(q4_k, 8, 0, 15)
#define PRODUCT_q4_k ENTRY_256(q4_k)
