/* q5_0: word 0: fifth bits; 1-4: nibbles; codes are 16 too high. */
VI_INLINE void q5_0_panel_codes(const uint8_t *words, int part, vi *q) {
    (void)part;
    nibbles_32(words, 1, q);
    fifths_32(word(words, 0), q);
}

TAIL_SCALE(q5_0)
PRODUCT_32(q5_0, 16)
#define PRODUCT_q5_0 ENTRY_32(q5_0)
