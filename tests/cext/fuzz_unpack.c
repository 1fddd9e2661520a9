/*
 * A libFuzzer target for the headers of cext/quant: any bytes are blocks of every weight format, which must
 * unpack, and multiply activations that were quantized from any floats, without a step outside their memory.
 *
 * The first byte picks the format, the second the number of elements; then come the floats and the blocks,
 * each repeated as often as needed. Every operand has an allocation of exactly its size, owned by the format's
 * one_ function, so that the address sanitizer sees the first byte too many. Built by .ci/fuzz with
 * build_ffi.py's formats.h, types.h and types.inc.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "formats.h"
#include "types.h"

#define LONGEST 1024 /* elements of a row; every block divides 256 */

typedef struct {
    const uint8_t *data;
    size_t size;
} stretch;

/* A new allocation of `size` bytes, filled with the stretch over and over; the caller frees it. */
static void *filled(size_t size, stretch from) {
    uint8_t *out = malloc(size);
    size_t at;
    if (!out)
        abort();
    for (at = 0; at < size; at++)
        out[at] = from.size ? from.data[at % from.size] : 0;
    return out;
}

/* Activations in a format of their own; float32 stays as it is. */
static void f32_quantize(const float *x, block_f32 *out, int n_blocks) {
    memcpy(out, x, (size_t)n_blocks * sizeof(*out));
}

/* One row of `n` elements of a weight format against its activations. */
#define CPU_WEIGHT(stem, number, block, act)                                                                           \
    static void one_##stem(int n, stretch floats, stretch blocks) {                                                    \
        size_t rows = (size_t)(n / (block));                                                                           \
        block_##stem *w = filled(rows * sizeof(*w), blocks);                                                           \
        float *x = filled((size_t)n * sizeof(*x), floats), *out = malloc((size_t)(block) * sizeof(*out));              \
        block_##act *a = malloc((size_t)(n / BLOCK_##act) * sizeof(*a));                                               \
        volatile float sink;                                                                                           \
        size_t i;                                                                                                      \
        if (!out || !a)                                                                                                \
            abort();                                                                                                   \
        for (i = 0; i < rows; i++)                                                                                     \
            stem##_unpack(w + i, out);                                                                                 \
        act##_quantize(x, a, n / BLOCK_##act);                                                                         \
        sink = stem##_dot(w, a, (int)rows);                                                                            \
        (void)sink;                                                                                                    \
        free(w);                                                                                                       \
        free(x);                                                                                                       \
        free(out);                                                                                                     \
        free(a);                                                                                                       \
    }
#include "types.inc"
#undef CPU_WEIGHT

typedef void one_fn(int n, stretch floats, stretch blocks);

#define CPU_WEIGHT(stem, number, block, act) one_##stem,
static one_fn *const table[] = {
#include "types.inc"
};
#undef CPU_WEIGHT

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    stretch floats, blocks;
    size_t part;
    if (size < 3)
        return 0;
    part = (size - 2) / 4;
    floats.data = data + 2, floats.size = part;
    blocks.data = data + 2 + part, blocks.size = size - 2 - part;
    table[data[0] % (sizeof(table) / sizeof(*table))](256 * (1 + data[1] % (LONGEST / 256)), floats, blocks);
    return 0;
}
