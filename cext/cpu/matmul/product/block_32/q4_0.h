/* q4_0: words 0-3: nibbles, 8 too high. */
VI_INLINE void q4_0_panel_codes(const uint8_t *words, int part, vi *q) {
    (void)part;
    nibbles_32(words, 0, q);
}

TAIL_SCALE(q4_0)
PRODUCT_32(q4_0, 8)
#define PRODUCT_q4_0 ENTRY_32(q4_0)
