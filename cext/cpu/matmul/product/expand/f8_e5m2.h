/* f8_e5m2: word 0: d; 1-32: codes, the upper bytes of f16 numbers. */
VI_INLINE vf f8_e5m2_lanes(vi code) {
    return vf_halves(code << 8);
}

EXPAND_BYTES(f8_e5m2)
#if defined(__AMX_BF16__)
PRODUCT_F8(f8_e5m2, 2, 0x7C, {56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71}, {0, 0x37, 0x38, 0x38},
           {0, 0x80, 0, 0x40})
#define PRODUCT_f8_e5m2                                                                                                \
    EXPAND_ENTRIES(f8_e5m2), {                                                                                         \
        TYPE_f8_e5m2, TYPE_bf16x2, f8_e5m2_amx                                                                         \
    }
#else
#define PRODUCT_f8_e5m2 EXPAND_ENTRIES(f8_e5m2)
#endif
