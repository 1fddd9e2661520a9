/* device.h: the handles of a GPU backend, shared by the files of this folder.
 *
 * A device works on two streams: `main` runs steps, in order; `side` brings weights, through two pinned pieces of host
 * memory that are filled and sent in turn. Work that needs what the other stream does waits for an event. Entries of the HAL
 * may come from any thread: each makes the device's context its own first.
 */
#ifndef SATCHEL_GPU_DEVICE_H
#define SATCHEL_GPU_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>

#include "vendor.h"

enum { GPU_MODULES = 24, GPU_PIECES = 2, GPU_BLOCKS = 4, GPU_OUT_MIRROR = 1 << 16 };
enum { GPU_PIECE = 16 << 20 };

typedef struct {
    uint8_t *host;     /* pinned, GPU_PIECE bytes */
    gpu_address device; /* as many, for what is packed on the device */
    gpu_event sent;    /* both may be filled again */
} gpu_piece;

/* A block of pool.c: host 0: of the device, else pinned memory of the host, as these flags of the driver say. */
typedef struct gpu_block gpu_block;
struct gpu_block {
    gpu_block *next;
    uint64_t at, size;
    int host, used;
};

enum { GPU_PINNED = 1, GPU_SEEN = 3 /* pinned, and the device reads and writes it */ };

/* Memory of the device that several execs use one after the other. */
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
    gpu_stream main, side;
    gpu_event loaded;            /* what `side` has done so far; valid while `loading` */
    int loading;
    gpu_module modules[GPU_MODULES];
    int waits;                   /* 1: the portable kernels may be launched early */
    gpu_piece pieces[GPU_PIECES];
    int next;                    /* piece */
    gpu_scratch *scratch;        /* the largest so far */
    gpu_custom *custom;          /* kernel n is custom[n - 1] */
    uint32_t n_custom;
    gpu_block *blocks;           /* all that was reserved but for pieces */
    pthread_mutex_t busy;        /* streams and pieces are used by one thread at a time */
    atomic_uint_fast64_t allocations;
};

struct hal_buffer {
    hal_device *device;
    gpu_address at;
    uint64_t size;
    uint32_t usage;
    hal_exec *writer;            /* an exec whose last run brings the buffer to `mirror` */
    uint8_t *mirror;             /* pinned; NULL: the buffer is read from the device */
    int wrapped;                 /* 1: memory of the process's, which is only read */
};

typedef struct {
    gpu_function function;
    gpu_grid grid;
    uint32_t call;               /* index into the exec's calls */
    int early;
    int custom;                  /* 1: a custom kernel, which is never fused with its neighbours */
} gpu_launch;

struct hal_exec {
    hal_device *device;
    hal_buffer *block;           /* the step buffer */
    int n_calls, n_launches, n_outs;
    int32_t most[HAL_COUNTS];    /* of each of the step block's counts, INT32_MAX where no view has it */
    gpu_call *calls;
    char (*ops)[28];             /* of the calls, for errors */
    gpu_launch *launches;
    hal_buffer **outs;           /* mirrored */
    gpu_scratch *scratch;
    gpu_address counters;        /* zeros between launches; 0: no kernel counts */
    uint8_t *blocks[GPU_BLOCKS]; /* pinned copies of step blocks under way */
    gpu_event taken[GPU_BLOCKS]; /* the device has its copy */
    int turn;
    uint32_t *fault;             /* pinned; kernels write it */
    gpu_event done;
    gpu_graph_exec graph;
    int ran;
    gpu_event *marks;            /* before each call and after the last, where steps are timed */
    uint64_t *times;
};

int gpu_measure(hal_device *, uint32_t what, uint64_t bytes, double *per_second);
int gpu_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *gpu_last_error(void);
/* 0, or HAL_E_DEVICE (HAL_E_MEMORY where memory ran out, HAL_E_LOST where the device is gone) with what was tried. */
int gpu_check(const hal_device *, int code, const char *what);
int gpu_lock(hal_device *); /* makes the context the caller's; gpu_unlock() in any case that it gave 0 */
void gpu_unlock(hal_device *);
int gpu_function_find(hal_device *, const char *name, gpu_function *);
int gpu_start(hal_device *, const gpu_launch *, const gpu_call *, gpu_stream);
int gpu_settle(hal_device *); /* `main` waits for what `side` was given */

/* Memory from the pool: zero only where the driver gives such. The lock is held; nothing uses what is given back. */
int gpu_take(hal_device *, int host, uint64_t size, uint64_t *at, const char *what);
int gpu_take_host(hal_device *, int flags, uint64_t size, void **out, const char *what); /* GPU_PINNED, GPU_SEEN */
void gpu_give(hal_device *, uint64_t at);
uint64_t gpu_spare(const hal_device *); /* bytes of the device that nobody uses */
void gpu_drop(hal_device *);            /* all of it, back to the driver */

int gpu_alloc(hal_device *, const hal_bufdesc *, hal_buffer **);
int gpu_wrap(hal_device *, const void *host, uint64_t size, hal_buffer **);
void gpu_free(hal_buffer *);
int gpu_write(hal_buffer *, uint64_t offset, const void *from, uint64_t size);
int gpu_read(hal_buffer *, uint64_t offset, void *to, uint64_t size);
int gpu_copy(hal_buffer *, uint64_t to_offset, hal_buffer *, uint64_t from_offset, uint64_t size);
const gpu_packing *gpu_packing_of(const hal_device *, uint32_t format); /* NULL: it stays as it is */
uint64_t gpu_packed(hal_device *, uint32_t format, int64_t stack, int64_t rows, int64_t columns);
int gpu_pack(hal_buffer *, uint64_t offset, uint32_t format, int64_t stack, int64_t rows, int64_t columns, const void *);
int gpu_kernels(hal_device *, const hal_plan *, uint32_t step, char *names, uint32_t most);
int gpu_add_kernel(hal_device *, const char *image, const char *entry, uint32_t *kernel);
void gpu_drop_custom(hal_device *);
int gpu_scratch_take(hal_device *, uint64_t size, gpu_scratch **);
void gpu_scratch_leave(hal_device *, gpu_scratch *);

int gpu_supports(hal_device *, const hal_plan *, uint32_t step);
int gpu_compile(hal_device *, const hal_plan *, hal_buffer *const *, hal_exec **);
int gpu_run(hal_exec *, const void *block, uint64_t size);
int gpu_wait(hal_exec *, uint32_t timeout_ms);
void gpu_release(hal_exec *);
int gpu_times(hal_exec *, uint64_t *ns, uint32_t n_steps);

#endif
