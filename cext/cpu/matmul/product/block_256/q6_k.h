/* q6_k: words 0-31: low four bits; 32-47: high two; 48-51: scales of 16; the tail half is d. */
VI_INLINE void q6_k_panel_scales(const uint8_t *words, const uint8_t *tail, scales_256 *s) {
    UNROLL_FOR (int g = 0; g < 16; g++)
        s->scale[g] = vi_signed_byte(word(words, 48 + g / 4), g % 4);
    UNROLL_FOR (int i = 0; i < 8; i++)
        s->pairs[i] = signed_pair(word(words, 48 + i / 2), 2 * (i % 2));
    s->d = vf_load_f16((const uint16_t *)tail);
}

VI_INLINE void q6_k_panel_codes(const uint8_t *words, int g, vi *q) {
    int half = g / 4, k = g % 4;
    UNROLL_FOR (int j = 0; j < 8; j++) {
        vi low = vi_shift_right(word(words, 16 * half + 8 * (k % 2) + j), 4 * (k / 2)) & 0x0F0F0F0F;
        vi two = word(words, 32 + 8 * half + j), high = k < 3 ? two << (4 - 2 * k) : vi_shift_right(two, 2);
        q[j] = low | (high & 0x30303030);
    }
}

PRODUCT_256(q6_k, 16, 32, 63)
#define PRODUCT_q6_k ENTRY_256(q6_k)
