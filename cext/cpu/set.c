/* set.c: the table of one instruction set's kernels, in the order of hal.h's ops. Compiled once per set. */
#include "cpu.h"

#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)

const cpu_set CPU_NAME(cpu_set) = {
    TEXT(CPU_ISA),
    {
#define HAL_OP(NAME, name, size) {#name, size, &CPU_NAME(cpu_kernel_##name)},
#include "hal_ops.inc"
#undef HAL_OP
    },
    CPU_NAME(cpu_multiply),
    CPU_NAME(cpu_read),
};
