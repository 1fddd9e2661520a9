/* mock.h: what the files of the tests' Metal share; see metal.c. */
#ifndef MOCK_METAL_H
#define MOCK_METAL_H

#include "fibers.h"
#include "objc.h"

enum {
    INDICES = 31,
    BYTES_MOST = 4096,
    THREADS_MOST = 1024,
    LOCAL_MOST = 32 << 10,
    OFFSET_UNIT = 256,
    LOCAL_UNIT = 16
};

typedef struct {
    unsigned long width, height, depth;
} mtl_size;
typedef struct {
    unsigned long location, length;
} mtl_range;

typedef struct buffer buffer;
struct buffer {
    object base;
    buffer *next;
    uint8_t *host, *gpu; /* two views of the same memory, but where that cannot be */
    uint8_t *mapped;     /* pages of the GPU's view; NULL: it cannot be taken away */
    uint8_t *mapped_host;
    size_t length, pages;
    int writable;
};

typedef struct {
    object base;
    emulated_kernel kernel;
    int indirect; /* may stand in an indirect command buffer */
} pipeline;

/* A kernel of a library that was compiled, as compile.py writes it. */
typedef struct {
    const char *name;
    void (*run)(void *const *buffers, const self *);
    int threads, buffers; /* of a group at most; bindings */
} msl_kernel;

/* What a library's threads wait by, and their number in the group; as metal_stdlib has it. */
typedef struct {
    void (*barrier)(void);
    uint32_t (*take)(uint32_t bits, int lane);
    int (*who)(void);
} msl_words;

/* A launch with all that was bound. */
typedef struct {
    pipeline *with;
    mtl_size groups, threads;
    unsigned long local;
    buffer *bound[INDICES];
    unsigned long offsets[INDICES];
    uint8_t *bytes[INDICES];
    int barrier;
} bound_launch;

/* An indirect command buffer, see indirect.c. */
typedef struct {
    object base;
    bound_launch *all;
    unsigned long n;
    int locals; /* whether commands may bind local memory */
} indirect;

extern class device_class, buffer_class, pipeline_class, indirect_class;

/* The GPU sees these buffers, and no others, or none. */
void show(buffer *const *, int n);
buffer *buffer_at(uint64_t gpu); /* NULL: none is there */
object *new_queue(object *device);
object *new_event(object *device);
object *new_indirect(object *device, selector, object *description, unsigned long most, unsigned long options);
void check_groups(const bound_launch *, const char *who);
void do_launch(const bound_launch *);
extern unsigned long long mock_launches, mock_replays;

#endif
