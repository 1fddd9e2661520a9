/* q2_k: words 0-3: scales and minimums, a nibble each; 4-19: pairs of bits; 20: d and dmin. */
VI_INLINE void q2_k_panel_scales(const uint8_t *words, const uint8_t *tail, scales_256 *s) {
    (void)tail;
    UNROLL_FOR (int g = 0; g < 16; g++)
        s->scale[g] = vi_byte(word(words, g / 4), g % 4) & 15;
    UNROLL_FOR (int i = 0; i < 8; i++)
        s->pairs[i] = byte_pair(vi_shift_right(word(words, i / 2), 4) & 0x0F0F0F0F, 2 * (i % 2));
    s->d = vf_halves(word(words, 20));
    s->min = vf_halves(vi_shift_right(word(words, 20), 16));
}

VI_INLINE void q2_k_panel_codes(const uint8_t *words, int g, vi *q) {
    pairs_of_bits(words, 4, g, q);
}

WIDE_256(q2_k, 16, 0, 16)
#define PRODUCT_q2_k ENTRY_256(q2_k)
