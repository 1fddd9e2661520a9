/* f16: 2 numbers a word; with bf16x2 activations where there are tiles for it, at the price of a sum in another order for
 * many columns than the exact one that one column needs to be quick. */
PRODUCT_FLOAT(f16, 2)
#if defined(__AMX_BF16__)
#define PRODUCT_f16                                                                                                    \
    PRODUCT_ENTRY(f16, f32), {                                                                                         \
        TYPE_f16, TYPE_bf16x2, f16_amx, HAL_FAST                                                                       \
    }
#else
#define PRODUCT_f16 PRODUCT_ENTRY(f16, f32)
#endif
