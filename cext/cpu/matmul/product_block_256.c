/* product_block_256.c: products of super-blocks of 256 that unpack codes in each pass (block_256.h). */
#include "block_256.h"
#include "weights/panel.h"
#include "products_block_256.inc"

PRODUCT_FAMILY(block_256) = {
#include "products_block_256_table.inc"
};
