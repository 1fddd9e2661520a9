/* iq2_xxs: of words 2 g and 2 g + 1 the first has the four points of group g, the second, rearranged, its signs and, on
 * top, its scale; the tail half is d, in eighths. */
VI_INLINE void iq2_xxs_panel_scales(const uint8_t *words, const uint8_t *tail, scales_256 *s) {
    UNROLL_FOR (int g = 0; g < 8; g++)
        s->scale[g] = vi_shift_right(word(words, 2 * g + 1), 28) * 2 + 1;
    scale_pairs(s, 8);
    s->d = vf_load_f16((const uint16_t *)tail) * vf_set(0.125f);
}

VI_INLINE void iq2_xxs_panel_codes(const uint8_t *words, int g, vi *q) {
    vi points = word(words, 2 * g), signs = even_signs(word(words, 2 * g + 1));
#if defined(__AVX512VBMI__)
    __m512i low = plane_256(planes_iq2_xxs[0], (__m512i)points), high = plane_256(planes_iq2_xxs[1], (__m512i)points);
    UNROLL_FOR (int i = 0; i < 4; i++)
        iq2_from_planes(low, high, i, signs, i, 4 + i, q + 2 * i);
#else
    UNROLL_FOR (int i = 0; i < 4; i++)
        iq2_coordinates(vi_gather(points_iq2_xxs, vi_byte(points, i)), signs, i, 4 + i, q + 2 * i);
#endif
}

WIDE_256(iq2_xxs, 8, IQ_LIFT, 0)
#define PRODUCT_iq2_xxs ENTRY_256(iq2_xxs)
