/* product.c: lookup of a product in a set of kernels and its base. */
#include "product.h"

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
