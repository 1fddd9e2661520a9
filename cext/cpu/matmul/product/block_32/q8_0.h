/* q8_0: words 0-7: signed codes. */
VI_INLINE void q8_0_panel_codes(const uint8_t *words, int part, vi *q) {
    (void)part;
    UNROLL_FOR (int j = 0; j < 8; j++)
        q[j] = sign_codes(word(words, j));
}

TAIL_SCALE(q8_0)
PRODUCT_32(q8_0, SIGNED_CODES)
#define PRODUCT_q8_0 ENTRY_32(q8_0)
