/* set.c: the kernel table of one instruction set, compiled once per set. It has the entries of the source files that are
 * compiled for the set, of which one with a base has few: own_<set>.inc, made by CMake, has an OWN_OP(NAME, name) per op and an
 * OWN_PRODUCTS(name) per family.
 */
#include "matmul/product.h"

#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)
#define OWN TEXT(CPU_JOIN(own, CPU_ISA).inc)

#ifdef CPU_BASE
extern const cpu_set CPU_JOIN(cpu_set, CPU_BASE);
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
#include OWN
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
