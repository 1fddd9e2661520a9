/* product_block_32.c: products of blocks of 32, and of several times 32. */
#include "product_32.h"
#include "weights/panel.h"
#include "products_block_32.inc"

PRODUCT_FAMILY(block_32) = {
#include "products_block_32_table.inc"
};
