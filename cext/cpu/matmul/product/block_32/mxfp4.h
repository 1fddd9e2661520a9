/* mxfp4: the tail byte is the scale's exponent; words 0-3: nibbles. Codes are 12 too high. */
enum { E2M1_LIFT = 12 };
#define LIFT_E2M1(x) (uint8_t)((x) + E2M1_LIFT)
static const uint8_t e2m1[16] = E2M1_TABLE(LIFT_E2M1);

VI_INLINE vf mxfp4_panel_scale(const uint8_t *words, const uint8_t *tail, vf *m) {
    vi e = vi_load_bytes(tail), small = e < 2;
    (void)words;
    return *m = (vf)((small & (vi_set(0x00200000) << (e & 1))) | (~small & (e - 1) << 23));
}

VI_INLINE void mxfp4_panel_codes(const uint8_t *words, int part, vi *q) {
    (void)part;
    nibbles_32(words, 0, q);
    UNROLL_FOR (int j = 0; j < 8; j++)
        q[j] = vi_lookup(e2m1, q[j]);
}

PRODUCT_32(mxfp4, E2M1_LIFT)
#define PRODUCT_mxfp4 ENTRY_32(mxfp4)
