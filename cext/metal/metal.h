/* metal.h: internal header of the Metal driver, which implements the functions of cext/gpu/api.h over Metal.
 *
 * All memory is shared between CPU and GPU. Kernels get addresses (MTLBuffer.gpuAddress), not bindings, so every encoder
 * declares all buffers as used (useResources). One lock guards everything except waiting.
 */
#ifndef SATCHEL_METAL_METAL_H
#define SATCHEL_METAL_METAL_H

#include <pthread.h>

#include "api.h"
#include "call.h"
#include "objc.h"

enum { METAL_INVALID = 1, METAL_NO_MEMORY = 2, METAL_NOT_FOUND = 500, METAL_NOT_READY = 600, METAL_FAILED = 719 };
enum {
    METAL_CALL_STRIDE = 1024 /* bytes from call to call in a buffer: a multiple of 256, a valid offset on every GPU */
};

typedef struct {
    objc_id is;
    uint64_t address; /* GPU address */
    uint8_t *host;
    uint64_t size;
} metal_buffer;

typedef struct metal_module metal_module;

/* A kernel, made when it is first looked up. */
typedef struct metal_function metal_function;
struct metal_function {
    metal_function *next;
    objc_id pipeline;
    unsigned long most; /* most threads of a group */
    char name[96];
};

typedef struct {
    objc_id is;
    metal_buffer *buffers;
    objc_id *ids; /* the buffers' objects, in the list's order */
    int n_buffers, room;
    uint64_t changes;            /* number of changes of the list */
    metal_function *copy, *fill; /* kernels of the first module */
} metal_device;

struct metal_module {
    metal_device *device;
    objc_id library;
    metal_function *functions;
};

/* A kernel launch, the only kind of work of a stream: kernels also copy and fill memory. */
typedef struct {
    metal_function *function;
    mtl_size groups;
    unsigned threads, local;
    gpu_call call;
} metal_launch;

typedef struct {
    metal_launch *launches;
    int n, room;
} metal_graph;

typedef struct metal_sent metal_sent; /* a command buffer that was committed */
struct metal_sent {
    metal_sent *next;
    objc_id commands;
};

typedef struct {
    metal_device *device;
    objc_id queue, commands, encoder; /* the latter two while something is being encoded */
    uint64_t used;                    /* device->changes when the encoder declared the buffers */
    metal_sent *sent;                 /* committed command buffers in order, until they are known to be done */
    metal_graph *recording;           /* not NULL: launches are recorded to this graph */
    int code;                         /* error of the first failure; reported once */
} metal_stream;

extern pthread_mutex_t metal_lock;
extern _Thread_local metal_device *metal_current;

int metal_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
int metal_said(const char **); /* the last failure's message */
/* The message of an NSError. */
const char *metal_text(objc_id error);

/* The buffer that contains `size` bytes at a GPU or host address; NULL: none. The lock is held. */
metal_buffer *metal_find(metal_device *, uint64_t address, uint64_t size);
metal_buffer *metal_find_host(metal_device *, const void *host, uint64_t size);
/* Allocates shared memory and lists it; address or host may be NULL. */
int metal_reserve(metal_device *, size_t size, gpu_address *address, void **host);
int metal_give(metal_device *, uint64_t address);

int metal_load(gpu_module *, const void *text);
int metal_unload(gpu_module);
int metal_function_of(gpu_function *, gpu_module, const char *name);

/* The stream's encoder, which has declared every buffer; it ends with the command buffer. */
objc_id metal_encoder(metal_stream *);
int metal_put(metal_stream *, const metal_launch *);
int metal_launch_fits(const metal_device *, const metal_launch *);
void metal_devices(gpu_api *); /* makes a table of the functions of device.c alone */
void metal_streams(gpu_api *); /* fills in the functions of stream.c */
void metal_graphs(gpu_api *);  /* fills in the functions of graph.c */

#endif
