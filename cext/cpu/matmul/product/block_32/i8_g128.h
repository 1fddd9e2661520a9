/* i8_g128: word 0: d; 1-32: signed codes. */
VI_INLINE vf i8_g128_panel_scale(const uint8_t *words, const uint8_t *tail, vf *m) {
    (void)tail;
    return *m = (vf)word(words, 0);
}

VI_INLINE void i8_g128_panel_codes(const uint8_t *words, int part, vi *q) {
    UNROLL_FOR (int j = 0; j < 8; j++)
        q[j] = sign_codes(word(words, 1 + 8 * part + j));
}

PRODUCT_32(i8_g128, SIGNED_CODES)
#define PRODUCT_i8_g128 ENTRY_32(i8_g128)
