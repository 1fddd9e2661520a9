/* q4_1: word 0: d and m; 1-4: nibbles. */
VI_INLINE void q4_1_panel_codes(const uint8_t *words, vi *q) {
    nibbles_32(words, 1, q);
}

PRODUCT_32(q4_1, MINIMUMS)
#define PRODUCT_q4_1 ENTRY_32(q4_1)
