/* fibers.h: runs a kernel's groups as fibers on one CPU thread. See fibers.c. */
#ifndef SATCHEL_EMULATED_FIBERS_H
#define SATCHEL_EMULATED_FIBERS_H

#include <stddef.h>
#include <stdint.h>

#include "call.h"
#ifndef LOCAL
#define LOCAL
#endif
#include "self.h"

/* The blocking functions (barrier, exchange), passed to kernels in libraries of their own. */
typedef struct {
    void (*barrier)(void);
    uint32_t (*take)(uint32_t bits, int lane);
} emulated_words;

typedef struct emulated_kernel emulated_kernel;
struct emulated_kernel {
    const char *name;
    void (*run)(const gpu_call *, const self *);
    int threads, wave; /* most threads of a group; lanes of a wave */
    emulated_kernel *next;
};

/* A barrier in a kernel's source. Static; registered when a thread first reaches it. */
typedef struct emulated_site emulated_site;
struct emulated_site {
    const char *file;
    int line;
    const emulated_kernel *first; /* the first kernel that reached it; NULL: none */
    char name[64];                /* "norm.k.h:21:1", see emulated_leave_out() */
    emulated_site *next;
};

typedef struct {
    uint32_t groups[3], threads, local; /* local: bytes of a group's memory */
} emulated_grid;

/* Called by kernels before main() begins. */
void emulated_tell(emulated_kernel *);
/* NULL: unknown name. */
const emulated_kernel *emulated_find(const char *name);

/* Runs all groups; the seed determines the order of groups, and of waves and threads between two waits. NULL, or what went
 * wrong. One launch at a time. */
const char *emulated_launch(const emulated_kernel *, const emulated_grid *, const gpu_call *, uint64_t seed);

/* Called by the running thread. */
void emulated_barrier(void);
void emulated_barrier_at(emulated_site *);
uint32_t emulated_take(uint32_t bits, int lane);
int emulated_thread(void); /* its index in its group */

/* Disables the barrier of this name (file:line:number within the line). NULL: enables all. */
void emulated_leave_out(const char *site);

#endif
