/* sys/auxv.h: what the kernel tells of the processor, of Android's C library. */
#pragma once
#define AT_HWCAP 16
#define AT_HWCAP2 26
unsigned long getauxval(unsigned long);
