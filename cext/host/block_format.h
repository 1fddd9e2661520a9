/* block_format.h: sizes of the element and block formats, by GGUF's type number. A backend checks views with them. */
#ifndef SATCHEL_BLOCK_FORMAT_H
#define SATCHEL_BLOCK_FORMAT_H

#include <stdint.h>

typedef struct {
    const char *name; /* the stem of quant/<name>.h */
    /* GGUF's type number, elements of a block, bytes of a block, alignment in bytes */
    uint32_t id, block, bytes, align;
} block_format;

const block_format *block_format_find(uint32_t id); /* NULL: the format is unknown */

#endif
