/* iq3_s: words 0-15: the lower bits of the points, two words to a group; 16-17: their ninth bits; 18-25: signs as in iq2_s;
 * 26: scales of 32, a nibble each; the tail half is d. */
static const uint8_t iq3_s_values[16] = {
    IQ_LIFT + 1, IQ_LIFT + 3, IQ_LIFT + 5, IQ_LIFT + 7, IQ_LIFT + 9, IQ_LIFT + 11, IQ_LIFT + 13, IQ_LIFT + 15,
    IQ_LIFT - 1, IQ_LIFT - 3, IQ_LIFT - 5, IQ_LIFT - 7, IQ_LIFT - 9, IQ_LIFT - 11, IQ_LIFT - 13, IQ_LIFT - 15};

VI_INLINE void iq3_s_panel_scales(const uint8_t *words, const uint8_t *tail, scales_256 *s) {
    UNROLL_FOR (int g = 0; g < 8; g++)
        s->scale[g] = (vi_shift_right(word(words, 26), 4 * g) & 15) * 2 + 1;
    scale_pairs(s, 8);
    s->d = vf_load_f16((const uint16_t *)tail);
}

VI_INLINE void iq3_s_panel_codes(const uint8_t *words, int g, vi *q) {
    vi high = vi_byte(word(words, 16 + g / 4), g % 4), signs = word(words, 18 + g);
#if defined(__AVX512VBMI__)
    __m512i which = (__m512i)word(words, 2 * g);
    __mmask64 bit_8 = mask_at(high, 0, 1);
    __m512i first = plane_512(planes_iq3_s[0], which, bit_8), second = plane_512(planes_iq3_s[1], which, bit_8);
    UNROLL_FOR (int i = 0; i < 4; i++)
        q[i] = vi_lookup(iq3_s_values, two_and_two_of(first, second, i) | sign_at(signs, i));
    enum { FROM = 4 };
#else
    enum { FROM = 0 };
#endif
    UNROLL_FOR (int j = FROM; j < 8; j++) {
        vi which = vi_byte(word(words, 2 * g + j / 4), j % 4) | (high << (8 - j) & 0x100);
        q[j] = vi_lookup(iq3_s_values, vi_gather(points_iq3_s, which) | sign_at(signs, j));
    }
}

WIDE_256(iq3_s, 8, IQ_LIFT, 0)
#define PRODUCT_iq3_s ENTRY_256(iq3_s)
