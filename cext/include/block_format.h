/* block_format.h: what a backend must know of an element or block format to check a view of it. */
#ifndef SATCHEL_BLOCK_FORMAT_H
#define SATCHEL_BLOCK_FORMAT_H

#include <stdint.h>

typedef struct {
    const char *name;           /* as quant/<name>.h has it */
    uint32_t id, block, bytes, align;
} block_format;

const block_format *block_format_find(uint32_t id); /* NULL: unknown */

#endif
