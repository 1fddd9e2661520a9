/* compile.h: run-time compilation of kernels. */
#ifndef SATCHEL_HIP_COMPILE_H
#define SATCHEL_HIP_COMPILE_H

/* Compiles source text to a code object for the current device, whose waves have `wave` lanes. os_free() ends it. NULL
 * and *why: hipRTC is not installed, or its error. */
void *hip_compile(const char *text, int wave, const char **why);

#endif
