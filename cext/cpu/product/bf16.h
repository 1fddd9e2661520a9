/* bf16: 2 numbers a word. */
PRODUCT_FLOAT(bf16, 2)
#define PRODUCT_bf16 PRODUCT_ENTRY(bf16, f32)
