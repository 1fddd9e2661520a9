/* q5_1: word 0: d and m; 1: fifth bits; 2-5: nibbles. */
VI_INLINE void q5_1_panel_codes(const uint8_t *words, int part, vi *q) {
    (void)part;
    nibbles_32(words, 2, q);
    fifths_32(word(words, 1), q);
}

PAIR_SCALE(q5_1)
PRODUCT_32(q5_1, MINIMUMS)
#define PRODUCT_q5_1 ENTRY_32(q5_1)
