/* compile.h: kernels from their source, on the machine that runs them. */
#ifndef SATCHEL_HIP_COMPILE_H
#define SATCHEL_HIP_COMPILE_H

/* A code object of the text for the current device, whose waves have so many lanes; NULL, and why: hipRTC is not installed,
 * or what it said. The caller frees it. */
void *hip_compile(const char *text, int wave, const char **why);

#endif
