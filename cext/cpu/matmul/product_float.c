/* product_float.c: products of float weights without blocks (f32, f16, bf16). */
#include "product_float.h"
#include "weights/panel.h"
#include "products_float.inc"

PRODUCT_FAMILY(float) = {
#include "products_float_table.inc"
};
