/* isa.c: the instruction sets that this library has kernels for, the best last, and lookup of kernels in a set and its base.
 *
 * CMake makes cpu_sets.inc: one CPU_SET(name) per set that was built.
 */
#include <string.h>

#include "detect.h"
#include "matmul/product.h"

#define CPU_SET(name) extern const cpu_set cpu_set_##name;
#include "cpu_sets.inc"
#undef CPU_SET

static const struct {
    const cpu_set *set;
    int (*runs)(void);
} sets[] = {
#define CPU_SET(name) {&cpu_set_##name, runs_##name},
#include "cpu_sets.inc"
#undef CPU_SET
};

const cpu_set *cpu_set_best(const char *forced) {
    for (size_t i = sizeof sets / sizeof *sets; i-- > 0;)
        if ((!forced || strcmp(forced, sets[i].set->name) == 0) && sets[i].runs())
            return sets[i].set;
    return NULL;
}

const cpu_kernel *cpu_kernel_of(const cpu_set *set, int op) {
    while (!set->kernels[op])
        set = set->base;
    return set->kernels[op];
}

cpu_unpack *cpu_unpack_of(const cpu_set *set, uint32_t format) {
    while (!set->unpack)
        set = set->base;
    return set->unpack(format);
}

const product_kernel *product_find(const cpu_set *set, uint32_t format, uint32_t act, uint32_t flags) {
    for (; set; set = set->base)
        for (int i = 0; i < CPU_FAMILIES && set->products[i]; i++) {
            const product_kernel *p = set->products[i];
            int known = 0;
            for (; p->run; p++)
                if (p->format == format) {
                    if (p->act == act && (p->needs & ~flags) == 0)
                        return p;
                    known = 1;
                }
            if (known)
                return NULL;
        }
    return NULL;
}
