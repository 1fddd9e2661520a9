/* device.h: the handles of a GPU backend (device, buffer, exec), shared by the files of this folder.
 *
 * A device has three streams. `main` runs steps in order. `packer` writes weights: bytes as they lie, and rows that it packs, of which
 * `side` sends piece after piece; it waits where a piece's memory still holds what is not packed. Work that depends on another stream
 * waits for an event. Any thread may call the HAL: each call first makes the device's context current.
 */
#ifndef SATCHEL_GPU_DEVICE_H
#define SATCHEL_GPU_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>

#include "error.h"
#include "vendor.h"

enum { GPU_MODULES = 32, GPU_PIECES = 4, GPU_BLOCKS = 4, GPU_OUT_MIRROR = 1 << 16 };
enum { GPU_PIECE = 16 << 20 };

/* Host memory that the driver has page-locked: the device copies from it without a staging piece. */
typedef struct {
    const uint8_t *at;
    uint64_t size;
} gpu_pinned;

typedef struct {
    uint8_t *host;      /* pinned, GPU_PIECE bytes */
    gpu_address device; /* GPU_PIECE bytes on the device: input of the packing kernels */
    gpu_event copied;   /* recorded on `side` when `device` has its bytes */
    gpu_event sent;     /* recorded when both may be filled again */
} gpu_piece;

/* A block of pool.c. host 0: device memory, else pinned host memory, allocated with these flags of the driver. */
typedef struct gpu_block gpu_block;
struct gpu_block {
    gpu_block *next;
    uint64_t at, size;
    int host, used;
};

enum { GPU_PINNED = 1, GPU_SEEN = 3 /* pinned, and mapped for the device to read and write */ };

/* Device memory that several execs use, one at a time. */
typedef struct {
    gpu_address at;
    uint64_t size;
    int users;
} gpu_scratch;

/* A custom kernel, which add_kernel() took. */
typedef struct {
    gpu_module module;
    gpu_function function;
} gpu_custom;

struct hal_device {
    const gpu_vendor *vendor;
    gpu_api api;
    int ordinal;
    gpu_context context;
    gpu_traits traits;
    gpu_stream main, side, packer;
    gpu_event loaded; /* the uploads so far; valid while `loading` */
    int loading;
    gpu_module modules[GPU_MODULES];
    void *unpacked[GPU_MODULES]; /* their images, where an archive has them */
    char image[96];              /* names the one of the portable kernels; of hal_info */
    int waits; /* 1: the portable kernels support early launch (CUDA: programmatic dependent launch) */
    gpu_piece pieces[GPU_PIECES];
    int next;                /* index of the piece to fill next */
    uint8_t *input;          /* pinned, GPU_PIECE bytes: of buffers that are no weights, on the way to the device */
    gpu_event input_sent[2]; /* recorded when a half of it may be filled again */
    gpu_pinned *pinned;      /* n_pinned ranges, which do not overlap */
    int n_pinned;
    gpu_scratch *scratch; /* the largest so far */
    gpu_custom *custom;   /* kernel n is custom[n - 1] */
    uint32_t n_custom;
    gpu_block *blocks;         /* everything allocated, except pieces */
    pthread_mutex_t *together; /* its group's lock, which comes before its own; NULL: the device is alone */
    pthread_mutex_t busy;      /* held by the one thread that uses streams and pieces */
    atomic_uint_fast64_t allocations;
};

struct hal_buffer {
    hal_device *device;
    gpu_address at;
    uint64_t size;
    uint32_t usage;
    hal_exec *writer; /* the exec whose last run copies the buffer to `mirror` */
    uint8_t *mirror;  /* pinned copy of a small output; NULL: read() copies from the device */
    int wrapped;      /* 1: host memory used in place, read-only */
    /* Of HAL_PREFETCH: */
    hal_exec *reader;  /* the exec that has read it last */
    gpu_event written; /* the uploads to it so far */
    int fresh;         /* no run has waited for `written` yet */
};

typedef struct {
    gpu_function function; /* NULL: no kernel but the all-reduce of a vendor's library, on what the group rounded */
    gpu_grid grid;
    uint32_t call; /* index into the exec's calls */
    int early;     /* 1: may start before the previous kernel ends */
} gpu_launch;

struct hal_exec {
    hal_device *device;
    hal_buffer *block; /* the step buffer */
    int n_calls, n_launches, n_outs;
    int32_t most[HAL_COUNTS]; /* maximum of each count of the step block; INT32_MAX where no view uses it */
    gpu_call *calls;
    char (*ops)[28]; /* op names of the calls, for errors */
    gpu_launch *launches;
    hal_buffer **outs;       /* output buffers that have a mirror */
    hal_buffer **prefetched; /* the n_prefetched buffers of HAL_PREFETCH that its steps use */
    int n_prefetched;
    gpu_scratch *scratch;
    gpu_address counters;        /* all zero between launches; 0: no kernel needs counters */
    uint8_t *blocks[GPU_BLOCKS]; /* pinned copies of step blocks in flight, a ring */
    gpu_event taken[GPU_BLOCKS]; /* recorded when the device has copied blocks[i] */
    int turn;                    /* index of the next of blocks */
    uint32_t *fault;             /* pinned; a kernel writes 1 + the step that met an index out of range */
    gpu_event done;
    gpu_graph_exec graph;
    hal_group *group; /* NULL: the exec runs alone */
    /* Of a group's exec: breaks the group where `code` (0: none) is an error of the device. Gives `code`, or HAL_E_LOST with the
     * reason if the group is broken. */
    int (*fault_of)(hal_group *, uint32_t rank, int code);
    /* Of a group's exec: starts the library's all-reduce of so many numbers on the stream. */
    int (*sum_of)(hal_group *, uint32_t rank, uint64_t numbers, gpu_stream);
    uint32_t rank, members, n_meetings,
        n_library; /* of the collectives, those by a library: such an exec is launched without a graph */
    int ran;
    gpu_event *marks; /* HAL_PROFILE: events before each call and after the last; else NULL */
    uint64_t *times;
};

int gpu_measure(hal_device *, uint32_t what, uint64_t bytes, double *per_second);
const char *gpu_words_of(const gpu_api *); /* the driver's message of its last error, or "" */
/* Turns a driver's result into a HAL code: 0, HAL_E_MEMORY for out of memory, HAL_E_LOST for a sticky error, else HAL_E_DEVICE.
 * The error text says what was attempted (`what`). */
int gpu_check(const hal_device *, int code, const char *what);
/* Locks the device, and its group before it, and makes its context current; if it gives 0, call gpu_unlock(). */
int gpu_lock(hal_device *);
void gpu_unlock(hal_device *);
int gpu_lock_alone(
    hal_device *); /* for the launchers of a step, whose caller has the group's lock; gpu_unlock_alone() */
void gpu_unlock_alone(hal_device *);
int gpu_function_find(hal_device *, const char *name, gpu_function *);
int gpu_start(hal_device *, const gpu_launch *, const gpu_call *, gpu_stream);
int gpu_settle(hal_device *);          /* makes `main` wait for the uploads so far */
int gpu_settle_prefetch(hal_buffer *); /* the same for the uploads to a buffer of HAL_PREFETCH */

/* Memory from the pool (pool.c), not zeroed. The caller holds the lock, and no queued work uses memory that it gives back. */
int gpu_take(hal_device *, int host, uint64_t size, uint64_t *at, const char *what);
int gpu_take_host(hal_device *, int flags, uint64_t size, void **out, const char *what); /* GPU_PINNED, GPU_SEEN */
void gpu_give(hal_device *, uint64_t at);
uint64_t gpu_spare(const hal_device *); /* bytes of unused blocks of device memory */
void gpu_drop(hal_device *);            /* gives every block back to the driver */

int gpu_alloc(hal_device *, const hal_bufdesc *, hal_buffer **);
int gpu_wrap(hal_device *, const void *host, uint64_t size, hal_buffer **);
void gpu_free(hal_buffer *);
int gpu_write(hal_buffer *, uint64_t offset, const void *from, uint64_t size);
int gpu_read(hal_buffer *, uint64_t offset, void *to, uint64_t size);
int gpu_copy(hal_buffer *, uint64_t to_offset, hal_buffer *, uint64_t from_offset, uint64_t size);
const gpu_packing *gpu_packing_of(const hal_device *, uint32_t format); /* NULL: the device uses the file's layout */
uint64_t gpu_packed(hal_device *, uint32_t format, int64_t stack, int64_t rows, int64_t columns);
int gpu_pack(hal_buffer *, uint64_t offset, uint32_t format, int64_t stack, int64_t rows, int64_t columns,
             const void *);
int gpu_pin(hal_device *, const void *host, uint64_t size, int writable);
int gpu_unpin(hal_device *, const void *host);
int gpu_kernels(hal_device *, const hal_plan *, uint32_t step, char *names, uint32_t most);
int gpu_add_kernel(hal_device *, const char *image, const char *entry, uint32_t *kernel);
void gpu_drop_custom(hal_device *);
int gpu_scratch_take(hal_device *, uint64_t size, gpu_scratch **);
void gpu_scratch_leave(hal_device *, gpu_scratch *);

int gpu_supports(hal_device *, const hal_plan *, uint32_t step);
int gpu_compile(hal_device *, const hal_plan *, hal_buffer *const *, hal_exec **);
int gpu_capture(hal_exec *); /* captures its launches as a graph; none with HAL_PROFILE. The lock is held */
int gpu_run(hal_exec *, const void *block, uint64_t size);
int gpu_wait(hal_exec *, uint32_t timeout_ms);
void gpu_release(hal_exec *);
int gpu_times(hal_exec *, uint64_t *ns, uint32_t n_steps);

#endif
