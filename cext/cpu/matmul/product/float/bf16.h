/* bf16: 2 numbers a word; with bf16x2 activations where the instruction set multiplies bfloat16. */
PRODUCT_FLOAT(bf16, 2)
#if defined(__AMX_BF16__)
#define PRODUCT_bf16                                                                                                   \
    PRODUCT_ENTRY(bf16, f32), {                                                                                        \
        TYPE_bf16, TYPE_bf16x2, bf16_amx                                                                               \
    }
#elif defined(__AVX512BF16__)
PRODUCT_PAIRS(bf16)
#define PRODUCT_bf16                                                                                                   \
    PRODUCT_ENTRY(bf16, f32), {                                                                                        \
        TYPE_bf16, TYPE_bf16x2, bf16_pairs_product                                                                     \
    }
#else
#define PRODUCT_bf16 PRODUCT_ENTRY(bf16, f32)
#endif
