/* pool.h: the thread pool of one device. See pool.c. */
#ifndef SATCHEL_CPU_POOL_H
#define SATCHEL_CPU_POOL_H

#include <stdint.h>

typedef struct pool pool;

/* A job is a sequence of phases. A phase is divided into grains; each runs once, on any thread, in any order. */
enum { POOL_GRAINS = 65535 };
typedef struct {
    int phases;
    const uint16_t *grains; /* per phase: 1 to POOL_GRAINS */
    void (*run)(void *context, int phase, int64_t grain, int thread);
    void (*done)(void *context,
                 int phase); /* after a phase's last grain, before the next phase's first; NULL: nothing */
    void *context;
} pool_job;

pool *pool_open(int threads); /* threads: including the caller's; NULL: out of memory, or a thread did not start */
void pool_close(pool *);
int pool_threads(const pool *);

/* Runs the job on the caller, as thread 0, and on threads 1 .. threads - 1 as far as they get CPU time; returns when it is
 * done. One job at a time, in the process that opened the pool. */
void pool_run(pool *, const pool_job *, int threads);

/* Runs a job of one phase of 1 to POOL_GRAINS grains on all threads. */
void pool_share(pool *, int64_t grains, void (*run)(void *context, int64_t grain), void *context);

/* whether this is a forked child of the process that opened the pool; a child has none of its threads */
int pool_forked(const pool *);
int pool_check_process(const pool *); /* 0, or HAL_E_INVALID in such a child */
int64_t pool_now(void);               /* nanoseconds */

#endif
