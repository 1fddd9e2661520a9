/* sys/types.h: sizes and offsets, of Android's C library (64-bit). */
#pragma once
#include <stddef.h>
typedef long ssize_t, off_t;
typedef int pid_t;
