/* f32: 1 number a word. */
PRODUCT_FLOAT(f32, 1)
#define PRODUCT_f32 PRODUCT_ENTRY(f32, f32)
