/* iq4_nl: words 0-3: nibbles. */
static const uint8_t nonlinear[16] = IQ4_NL_TABLE(SIGN_CODE);

VI_INLINE void iq4_nl_panel_codes(const uint8_t *words, int part, vi *q) {
    (void)part;
    nibbles_32(words, 0, q);
    UNROLL_FOR (int j = 0; j < 8; j++)
        q[j] = vi_lookup(nonlinear, q[j]);
}

TAIL_SCALE(iq4_nl)
PRODUCT_32(iq4_nl, SIGNED_CODES)
#define PRODUCT_iq4_nl ENTRY_32(iq4_nl)
