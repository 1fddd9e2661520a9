/* pool.h: the threads of one device. See pool.c. */
#ifndef SATCHEL_CPU_POOL_H
#define SATCHEL_CPU_POOL_H

#include <stdint.h>

typedef struct pool pool;

pool *pool_open(int threads); /* NULL: no memory or no thread */
void pool_close(pool *);
int pool_threads(const pool *);
int pool_default_threads(void); /* how many CPUs this process may use */

/* Runs fn(context, thread) on every thread, the caller being thread 0; returns when all have returned. One at a time.
 * `steps`: the steps that it claims grains of are numbered 0 .. steps - 1. */
void pool_run(pool *, uint32_t steps, void (*fn)(void *, int), void *context);

/* Within a pool_run: the next of `grains` grains (at most POOL_GRAINS) of step `step` for this thread, or -1. Each is
 * given once; threads begin with ranges of their own, in order, and then take from the far end of the others'. */
enum { POOL_GRAINS = 65535 };
int64_t pool_claim(pool *, int thread, int64_t grains, uint32_t step);

int64_t pool_now(void); /* nanoseconds */

/* Called by every thread of a pool_run: none goes on before all have come. */
void pool_barrier(pool *, int thread);

#endif
