/* block_format.c: the table of all formats, from the headers of quant/. Compiled into each library that has kernels. */
#include "block_format.h"

#include "backend.h"
#include "formats.h"

static const block_format formats[] = {
#define CPU_WEIGHT(stem, id, block, act) {#stem, id, block, sizeof(block_##stem), _Alignof(block_##stem)},
#define CPU_ONLY_ACT(stem, id, block) {#stem, id, block, sizeof(block_##stem), _Alignof(block_##stem)},
#include "types.inc"
    {"i8", HAL_FORMAT_I8, 1, 1, 1},
    {"i32", HAL_FORMAT_I32, 1, 4, 4},
};

const block_format *block_format_find(uint32_t id) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].id == id)
            return formats + i;
    return NULL;
}
