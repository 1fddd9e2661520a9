/* pool.h: the threads of one device. See pool.c. */
#ifndef SATCHEL_CPU_POOL_H
#define SATCHEL_CPU_POOL_H

#include <stdint.h>

typedef struct pool pool;

/* Work in phases, one after the other. A phase is cut into grains; each is run once, on any thread, in any order. */
enum { POOL_GRAINS = 65535 };
typedef struct {
    int phases;
    const uint16_t *grains;                 /* per phase: 1 to POOL_GRAINS */
    void (*run)(void *context, int phase, int64_t grain, int thread);
    void (*done)(void *context, int phase); /* after a phase's last grain, before the next phase's first; NULL: nothing */
    void *context;
} pool_job;

int pool_default_threads(void); /* limits.c: how many CPUs this process may use */
pool *pool_open(int threads); /* the caller's included; NULL: no memory or no thread */
void pool_close(pool *);
int pool_threads(const pool *);

/* Runs the job on the caller, as thread 0, and on threads 1 .. threads - 1 as far as they find the time; returns when it
 * is done. One at a time, and in the process that opened the pool. */
void pool_run(pool *, const pool_job *, int threads);

/* A job of a single phase of 1 to POOL_GRAINS grains, on all threads. */
void pool_share(pool *, int64_t grains, void (*run)(void *context, int64_t grain), void *context);

int pool_forked(const pool *); /* whether this is a child of that process: it has none of the threads */
int64_t pool_now(void);        /* nanoseconds */

#endif
