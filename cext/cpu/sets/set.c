/* set.c: the kernel table of one instruction set, compiled once per set. A set with a base has only the entries of source
 * files that are compiled for it: own_<set>.inc, made by CMake, has an OWN_OP(NAME, name) per op and an OWN_PRODUCTS(name) per
 * family.
 */
#include "matmul/product.h"

#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)

#ifdef CPU_BASE
#define OWN TEXT(CPU_JOIN(own, CPU_ISA).inc)
extern const cpu_set CPU_JOIN(cpu_set, CPU_BASE);
#else
#define OWN "families.inc"
#endif

#define OWN_OP(NAME, name)
#define OWN_PRODUCTS(name) extern PRODUCT_FAMILY(name);
#include OWN
#undef OWN_OP
#undef OWN_PRODUCTS

const cpu_set CPU_NAME(cpu_set) = {
    .name = TEXT(CPU_ISA),
#ifdef CPU_BASE
    .base = &CPU_JOIN(cpu_set, CPU_BASE),
#else
    .unpack = CPU_NAME(cpu_unpack_find),
#endif
    .kernels =
        {
#define OWN_OP(NAME, name) [HAL_OP_##NAME] = &CPU_NAME(cpu_kernel_##name),
#define OWN_PRODUCTS(name)
#ifdef CPU_BASE
#include OWN
#else
#define HAL_OP(NAME, name, size) OWN_OP(NAME, name)
#include "hal_ops.inc"
#undef HAL_OP
#endif
#undef OWN_OP
#undef OWN_PRODUCTS
        },
    .products =
        {
#define OWN_OP(NAME, name)
#define OWN_PRODUCTS(name) CPU_NAME(products_##name),
#include OWN
#undef OWN_OP
#undef OWN_PRODUCTS
        },
    .multiply = CPU_NAME(cpu_multiply),
    .read = CPU_NAME(cpu_read),
};
