/* points_once.h: included first by units that read codebooks (points.h), which are the same for every set: their tables have weak names
 * and a section of their own, so that a program whose linker drops what nothing refers to has them once. Elsewhere than in ELF
 * each unit keeps its own. */
#ifndef SATCHEL_CPU_POINTS_ONCE_H
#define SATCHEL_CPU_POINTS_ONCE_H

#if defined(__ELF__)
#define QUANT_TABLE __attribute__((weak, visibility("hidden"), section(".rodata.points"))) const
#endif

#endif
