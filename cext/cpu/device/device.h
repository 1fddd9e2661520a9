/* device.h: the handles of the CPU backend, shared by backend.c, plan.c and run.c. */
#ifndef SATCHEL_CPU_DEVICE_H
#define SATCHEL_CPU_DEVICE_H

#include <pthread.h>

#include "cpu.h"
#include "error.h"
#include "pool.h"

/* Of custom.c: a loaded library with a custom kernel, and a step that uses it. */
typedef struct cpu_custom_kernel cpu_custom_kernel;
typedef struct cpu_custom_step cpu_custom_step;

struct hal_device {
    const cpu_set *set;
    pool *pool;
    uint32_t flags;              /* of hal_options */
    int threads, threads_decode; /* for steps of more than DECODE_TOKENS tokens; for the others */
    pthread_mutex_t busy;        /* held during a run: one run at a time */
    atomic_uint_fast64_t allocations;
    cpu_custom_kernel *custom; /* kernel n is custom[n - 1] */
    uint32_t n_custom;
    hal_exec *resident; /* list of the execs that ran a long step since memory was given back; see run.c */
    int quiet;          /* short steps since the last long one */
};

struct hal_buffer {
    hal_device *device;
    uint8_t *data;
    uint64_t size;
    void *owned; /* pointer to free; NULL: host memory, used in place and never written */
    int range;   /* for host memory: its range of mapped.h */
    int is_arena;
};

/* A call with its kernel and its op's name. */
typedef struct {
    cpu_call call;
    const cpu_kernel *kernel;
    const char *op;
} exec_step;

typedef struct {
    int view, count, most; /* counts[count] replaces views[view].shape[0], which is at most `most` */
} exec_dim;

/* Steps first .. end - 1 that run between two barriers: one step that the threads share, or several that one thread runs. */
typedef struct {
    int first, end;
} exec_phase;

struct hal_exec {
    hal_device *device;
    hal_buffer *block;     /* the step buffer */
    int *ranges, n_ranges; /* ranges of mapped.h that the steps read */
    int n_steps, n_dims;
    exec_step *steps;
    cpu_view *views; /* each step's output and inputs, concatenated */
    exec_dim *dims;
    uint8_t *args, *scratch, *shared;
    uint64_t scratch_bytes, shared_bytes;
    hal_buffer *arena; /* NULL: none that the device owns */
    uint64_t arena_bytes;
    hal_exec *next_resident;
    int is_resident;
    cpu_split *splits;  /* per step: its work items at this run's shapes */
    exec_phase *phases; /* phases of this run */
    uint16_t *grains;   /* per phase: number of grains */
    int n_phases;
    int64_t mark;    /* HAL_PROFILE: when the previous step ended */
    uint64_t *times; /* HAL_PROFILE: nanoseconds per step so far; else NULL */
    atomic_int fault;
    cpu_custom_step *custom_steps; /* the steps that run custom kernels; capacity: the plan's overrides */
    int n_custom_steps;
};

int cpu_supports(hal_device *, const hal_plan *, uint32_t step);
int cpu_compile(hal_device *, const hal_plan *, hal_buffer *const *, hal_exec **);
int cpu_run(hal_exec *, const void *block, uint64_t size);
void cpu_release(hal_exec *);
/* Takes an exec, or those with this arena, from the device's list of resident ones, before they go; both NULL: all. */
void cpu_leave_resident(hal_device *, const hal_exec *, const hal_buffer *arena);
int cpu_add_kernel(hal_device *, const char *image, const char *entry, uint32_t *kernel);
void cpu_drop_custom(hal_device *);
/* sets the step's kernel to the custom one of its override */
int cpu_use_custom(hal_exec *, const hal_plan *, uint32_t step, exec_step *);
int cpu_pack(hal_buffer *, uint64_t offset, uint32_t format, int64_t stack, int64_t rows, int64_t columns,
             const void *from);
int cpu_times(hal_exec *, uint64_t *ns, uint32_t n_steps);
int cpu_measure(hal_device *, uint32_t what, uint64_t bytes, double *per_second);

#endif
