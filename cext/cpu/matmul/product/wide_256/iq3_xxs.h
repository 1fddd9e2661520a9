/* iq3_xxs: words 2 g and 2 g + 1: the eight points of group g; 16-23: signs and scales as in iq2_xxs; the tail half is
 * d, in quarters. */
static const uint8_t iq3_xxs_values[16] = {
    IQ_LIFT + 4, IQ_LIFT + 12, IQ_LIFT + 20, IQ_LIFT + 28, IQ_LIFT + 36, IQ_LIFT + 44, IQ_LIFT + 52, IQ_LIFT + 62,
    IQ_LIFT - 4, IQ_LIFT - 12, IQ_LIFT - 20, IQ_LIFT - 28, IQ_LIFT - 36, IQ_LIFT - 44, IQ_LIFT - 52, IQ_LIFT - 62};

VI_INLINE void iq3_xxs_panel_scales(const uint8_t *words, const uint8_t *tail, scales_256 *s) {
    UNROLL_FOR (int g = 0; g < 8; g++)
        s->scale[g] = vi_shift_right(word(words, 16 + g), 28) * 2 + 1;
    scale_pairs(s, 8);
    s->d = vf_load_f16((const uint16_t *)tail) * vf_set(0.25f);
}

VI_INLINE void iq3_xxs_panel_codes(const uint8_t *words, int g, vi *q) {
    vi signs = even_signs(word(words, 16 + g));
#if defined(__AVX512VBMI__)
    UNROLL_FOR (int w = 0; w < 2; w++) {
        __m512i which = (__m512i)word(words, 2 * g + w);
        __m512i low = plane_256(planes_iq3_xxs[0], which), high = plane_256(planes_iq3_xxs[1], which);
        UNROLL_FOR (int i = 0; i < 4; i++)
            q[4 * w + i] =
                vi_lookup(iq3_xxs_values, two_and_two_of(low, high, i) | sign_at(signs, 2 * w + i / 2 + 4 * (i % 2)));
    }
#else
    UNROLL_FOR (int j = 0; j < 8; j++) {
        vi point = vi_gather(points_iq3_xxs, vi_byte(word(words, 2 * g + j / 4), j % 4));
        q[j] = vi_lookup(iq3_xxs_values, point | sign_at(signs, j / 2 + 4 * (j % 2)));
    }
#endif
}

WIDE_256(iq3_xxs, 8, IQ_LIFT, 0)
#define PRODUCT_iq3_xxs ENTRY_256(iq3_xxs)
