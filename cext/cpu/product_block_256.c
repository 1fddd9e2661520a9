/* product_block_256.c: products of super-blocks of 256 whose codes each pass unpacks again. */
#include "block_256.h"
#include "panel.h"
#include "products_block_256.inc"

PRODUCT_FAMILY(block_256) = {
#include "products_block_256_table.inc"
};
