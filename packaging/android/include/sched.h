/* sched.h: processors of a thread, of Android's C library (64-bit). */
#pragma once
#include <stddef.h>
#include <sys/types.h>
typedef struct {
    unsigned long bits[1024 / 64];
} cpu_set_t;
int sched_yield(void);
int sched_getaffinity(pid_t, size_t, cpu_set_t *);
int __sched_cpucount(size_t, const cpu_set_t *);
#define CPU_COUNT(set) __sched_cpucount(sizeof(cpu_set_t), set)
