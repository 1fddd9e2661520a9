/* f8_e4m3: word 0: d; 1-32: codes. */
VI_INLINE vf f8_e4m3_lanes(vi code) {
    vi size = (code & 0x7F) << 20, nan = size == 0x07F00000, sign = (code & 0x80) << 24;
    vi number = (vi)((vf)size * vf_set(0x1p120f)); /* as f8_e4m3_value has it */
    return (vf)(sign | (number & ~nan) | (nan & 0x7FC00000));
}

/* Words of codes of eight bits under a scale in word 0; `lanes` says what a code is. */
#define EXPAND_BYTES(stem)                                                                                             \
    static void stem##_expand(const uint8_t *words, const uint8_t *tail, float *to) {                                  \
        vf d = (vf)word(words, 0);                                                                                     \
        (void)tail;                                                                                                    \
        for (int i = 0; i < BLOCK_##stem / 4; i++) {                                                                   \
            fetch(words + LINE * i, LINE, SEVERAL);                                                                    \
            UNROLL_FOR (int j = 0; j < 4; j++)                                                                         \
                vf_store(to + 16 * (4 * i + j), d * stem##_lanes(vi_byte(word(words, 1 + i), j)));                     \
        }                                                                                                              \
    }                                                                                                                  \
    EXPAND(stem)

EXPAND_BYTES(f8_e4m3)
#if defined(__AMX_BF16__)
PRODUCT_F8(f8_e4m3, 3, 0x7F, {60, 61, 62, 63, 64, 65, 66, 67, 60, 61, 62, 63, 64, 65, 66, 67},
           {0, 0x3B, 0x3B, 0x3B, 0x3C, 0x3C, 0x3C, 0x3C}, {0, 0, 0x80, 0xC0, 0, 0x20, 0x40, 0x60})
#define PRODUCT_f8_e4m3                                                                                                \
    EXPAND_ENTRIES(f8_e4m3), {                                                                                         \
        TYPE_f8_e4m3, TYPE_bf16x2, f8_e4m3_amx                                                                         \
    }
#else
#define PRODUCT_f8_e4m3 EXPAND_ENTRIES(f8_e4m3)
#endif
