/* q1_0: words 0-3: 32 bits each, rearranged: bit j of byte i is that of code 4 j + i. Codes are 0 and 2, 1 too high. */
VI_INLINE void q1_0_panel_codes(const uint8_t *words, int part, vi *q) {
    vi bits = word(words, part);
    UNROLL_FOR (int j = 0; j < 8; j++)
        q[j] = (j < 1 ? bits << 1 : vi_shift_right(bits, j - 1)) & 0x02020202;
}

TAIL_SCALE(q1_0)
PRODUCT_32(q1_0, 1)
#define PRODUCT_q1_0 ENTRY_32(q1_0)
