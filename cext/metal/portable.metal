/* portable.metal: the portable kernels for Metal, and two kernels of the driver: copy and fill. Their groups loop over all
 * bytes with a grid stride, a word per thread where everything is aligned. */
#include "kernels.h"

#define EACH(type)                                                                                                     \
    for (uint64_t i = (uint64_t)m.group[0] * m.threads + m.thread; i < c->v[0].stride / sizeof(type); i += step)

KERNEL(metal_copy, GROUP) {
    CONSTANT gpu_view *to = c->v, *from = c->v + 1;
    uint64_t step = (uint64_t)to->shape[0] * m.threads;
    if ((to->data | from->data | to->stride) % 4 == 0) {
        EACH(uint32_t)
            ROW(uint32_t, to, 0)[i] = ROW(const uint32_t, from, 0)[i];
    } else {
        EACH(uint8_t)
            ROW(uint8_t, to, 0)[i] = ROW(const uint8_t, from, 0)[i];
    }
}

KERNEL(metal_fill, GROUP) {
    CONSTANT gpu_view *to = c->v;
    uint64_t step = (uint64_t)to->shape[0] * m.threads;
    if ((to->data | to->stride) % 4 == 0) {
        EACH(uint32_t)
            ROW(uint32_t, to, 0)[i] = c->mode * 0x01010101u;
    } else {
        EACH(uint8_t)
            ROW(uint8_t, to, 0)[i] = (uint8_t)c->mode;
    }
}
