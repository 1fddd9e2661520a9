/* q8_k: word 0: d; 1-64: signed codes; the sums behind them are not looked at. */
VI_INLINE vf q8_k_lanes(vi code) {
    return vi_to_vf(vi_signed_byte(code, 0));
}

EXPAND_BYTES(q8_k)
#define PRODUCT_q8_k EXPAND_ENTRIES(q8_k)
