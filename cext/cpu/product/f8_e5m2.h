/* f8_e5m2: word 0: d; 1-32: codes, the upper bytes of f16 numbers. */
VI_INLINE vf f8_e5m2_lanes(vi code) { return vf_halves(code << 8); }

EXPAND_BYTES(f8_e5m2)
#define PRODUCT_f8_e5m2 EXPAND_ENTRIES(f8_e5m2)
