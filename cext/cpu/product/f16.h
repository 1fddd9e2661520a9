/* f16: 2 numbers a word. */
PRODUCT_FLOAT(f16, 2)
#define PRODUCT_f16 PRODUCT_ENTRY(f16, f32)
