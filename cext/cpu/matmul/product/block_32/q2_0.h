/* q2_0: words 0-3: 16 codes each, rearranged: bits 2 j and 2 j + 1 of byte i are code 4 j + i. Codes are 1 too high. */
VI_INLINE void q2_0_panel_codes(const uint8_t *words, int part, vi *q) {
    UNROLL_FOR (int j = 0; j < 8; j++)
        q[j] = vi_shift_right(word(words, 2 * part + j / 4), 2 * (j % 4)) & 0x03030303;
}

TAIL_SCALE(q2_0)
PRODUCT_32(q2_0, 1)
#define PRODUCT_q2_0 ENTRY_32(q2_0)
