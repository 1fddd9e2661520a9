/* sys/resource.h: what a thread has used, of Android's C library (64-bit); the kernel's layout. */
#pragma once
#include <sys/types.h>
#include <time.h>
#define RUSAGE_THREAD 1
struct rusage {
    long user_and_system[4];
    long ru_maxrss, memory[3], ru_minflt, ru_majflt, counts[6], ru_nvcsw, ru_nivcsw;
};
int getrusage(int, struct rusage *);
