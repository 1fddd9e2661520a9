/* q4_1: word 0: d and m; 1-4: nibbles. */
VI_INLINE void q4_1_panel_codes(const uint8_t *words, int part, vi *q) {
    (void)part;
    nibbles_32(words, 1, q);
}

PAIR_SCALE(q4_1)
PRODUCT_32(q4_1, MINIMUMS)
#define PRODUCT_q4_1 ENTRY_32(q4_1)
