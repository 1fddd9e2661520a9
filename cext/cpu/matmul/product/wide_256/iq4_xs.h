/* iq4_xs: word 0: d and the upper bits of the scales; 1: their nibbles; 2-33: nibbles of codes. Scales are 32 too high,
 * and the table is that of iq4_nl. */
static const uint8_t iq4_xs_lookup[16] = IQ4_NL_TABLE(SIGN_CODE);

VI_INLINE void iq4_xs_panel_scales(const uint8_t *words, const uint8_t *tail, scales_256 *s) {
    vi first = word(words, 0), low = word(words, 1);
    (void)tail;
    UNROLL_FOR (int g = 0; g < 8; g++) {
        vi two = vi_shift_right(first, 16 + 2 * g) & 3;
        s->scale[g] = ((vi_shift_right(low, 4 * g) & 15) | two << 4) - 32;
    }
    scale_pairs(s, 8);
    s->d = vf_halves(first);
}

VI_INLINE void iq4_xs_panel_codes(const uint8_t *words, int g, vi *q) {
    UNROLL_FOR (int j = 0; j < 8; j++)
        q[j] = vi_lookup(iq4_xs_lookup, vi_shift_right(word(words, 2 + 4 * g + j % 4), 4 * (j / 4)) & 0x0F0F0F0F);
}

WIDE_256(iq4_xs, 8, SIGNED_CODES, 0)
#define PRODUCT_iq4_xs ENTRY_256(iq4_xs)
