/* fibers.h: a group of threads on one thread of the CPU. See fibers.c. */
#ifndef SATCHEL_EMULATED_FIBERS_H
#define SATCHEL_EMULATED_FIBERS_H

#include <stddef.h>
#include <stdint.h>

#include "call.h"
#ifndef LOCAL
#define LOCAL
#endif
#include "self.h"

/* The words that wait, as a kernel in a library of its own is given them. */
typedef struct {
    void (*barrier)(void);
    uint32_t (*take)(uint32_t bits, int lane);
} emulated_words;

typedef struct emulated_kernel emulated_kernel;
struct emulated_kernel {
    const char *name;
    void (*run)(const gpu_call *, const self *);
    int threads, wave; /* of a group, at most; of a wave */
    emulated_kernel *next;
};

/* A barrier in a kernel's text. Static, and known from when a thread first comes there. */
typedef struct emulated_site emulated_site;
struct emulated_site {
    const char *file;
    int line;
    const emulated_kernel *first; /* that came there; NULL: none did */
    char name[64];                /* "norm.k.h:21:1", see emulated_leave_out() */
    emulated_site *next;
};

typedef struct {
    uint32_t groups[3], threads, local; /* local: bytes of a group's memory */
} emulated_grid;

/* Called by kernels before main() begins. */
void emulated_tell(emulated_kernel *);
/* NULL: there is none of that name. */
const emulated_kernel *emulated_find(const char *name);

/* Runs all groups in an order, and their waves and threads between two waits in orders, that follow from the seed. NULL, or what was
 * wrong. One launch at a time. */
const char *emulated_launch(const emulated_kernel *, const emulated_grid *, const gpu_call *, uint64_t seed);

/* For the thread that is running. */
void emulated_barrier(void);
void emulated_barrier_at(emulated_site *);
uint32_t emulated_take(uint32_t bits, int lane);
int emulated_thread(void); /* its number in its group */

/* From now on no thread waits at the barrier of this name: its file, its line, its number among those of the line. NULL: all do
 * at all. */
void emulated_leave_out(const char *site);

#endif
