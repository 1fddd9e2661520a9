/* product_float.c: products of weights that are numbers, without blocks. */
#include "product_float.h"
#include "panel.h"
#include "products_float.inc"

PRODUCT_FAMILY(float) = {
#include "products_float_table.inc"
};
