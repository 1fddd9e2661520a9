/* tq2_0: words 0-15: pairs of bits, 1 too high; the tail half is d. */
VI_INLINE void tq2_0_panel_scales(const uint8_t *words, const uint8_t *tail, scales_256 *s) {
    (void)words;
    one_scale(tail, s);
}

VI_INLINE void tq2_0_panel_codes(const uint8_t *words, int g, vi *q) {
    pairs_of_bits(words, 0, g, q);
}

WIDE_256(tq2_0, 8, 1, 0)
#define PRODUCT_tq2_0 ENTRY_256(tq2_0)
