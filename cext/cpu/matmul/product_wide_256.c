/* product_wide_256.c: products of super-blocks of 256 whose codes are unpacked once for all columns. */
#include "weights/points_once.h"
#include "wide_256.h"
#include "weights/panel.h"
#include "products_wide_256.inc"

PRODUCT_FAMILY(wide_256) = {
#include "products_wide_256_table.inc"
};
