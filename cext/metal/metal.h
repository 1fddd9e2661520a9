/* metal.h: what the files of this folder share: Metal behind the functions that the common host of cext/gpu/ calls (api.h).
 *
 * All memory is shared between processor and GPU. Kernels are given addresses (MTLBuffer.gpuAddress), not bindings, so each
 * encoder is told of every buffer that there is. One lock guards everything but waiting.
 */
#ifndef SATCHEL_METAL_METAL_H
#define SATCHEL_METAL_METAL_H

#include <pthread.h>

#include "api.h"
#include "call.h"
#include "objc.h"

enum { METAL_INVALID = 1, METAL_NO_MEMORY = 2, METAL_NOT_FOUND = 500, METAL_NOT_READY = 600, METAL_FAILED = 719 };
enum { METAL_CALL_STRIDE = 1024 /* of calls in a buffer: a multiple of 256, which every GPU takes as an offset */ };

typedef struct {
    objc_id is;
    uint64_t address; /* on the GPU */
    uint8_t *host;
    uint64_t size;
} metal_buffer;

typedef struct metal_module metal_module;

/* A kernel, made when it is first looked up. */
typedef struct metal_function metal_function;
struct metal_function {
    metal_function *next;
    objc_id pipeline;
    unsigned long most; /* threads of a group */
    char name[96];
};

typedef struct {
    objc_id is;
    metal_buffer *buffers;
    objc_id *ids;      /* of the buffers, in their order */
    int n_buffers, room;
    uint64_t changes;  /* of the list */
    metal_function *copy, *fill; /* of the first module */
} metal_device;

struct metal_module {
    metal_device *device;
    objc_id library;
    metal_function *functions;
};

/* All that is ever put into a stream: bytes are moved by kernels too. */
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
    uint64_t used;                    /* device->changes when the encoder was told of the buffers */
    metal_sent *sent;                 /* in order, until they are seen to be done */
    metal_graph *recording;           /* launches go there instead */
    int code;                         /* of the first that failed; told once */
} metal_stream;

extern pthread_mutex_t metal_lock;
extern _Thread_local metal_device *metal_current;

int metal_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
int metal_said(const char **); /* the last failure's text */
/* What an NSError says. */
const char *metal_text(objc_id error);

/* The buffer in which `size` bytes lie, by the GPU's addresses or by the host's; NULL: none. The lock is held. */
metal_buffer *metal_find(metal_device *, uint64_t address, uint64_t size);
metal_buffer *metal_find_host(metal_device *, const void *host, uint64_t size);
/* Memory of both, listed; *host or *address may be wanted alone. */
int metal_reserve(metal_device *, size_t size, gpu_address *address, void **host);
int metal_give(metal_device *, uint64_t address);

int metal_load(gpu_module *, const void *text);
int metal_unload(gpu_module);
int metal_function_of(gpu_function *, gpu_module, const char *name);

/* An encoder of the stream's that knows every buffer; it ends with the command buffer. */
objc_id metal_encoder(metal_stream *);
int metal_put(metal_stream *, const metal_launch *);
int metal_launch_fits(const metal_device *, const metal_launch *);
void metal_streams(gpu_api *); /* fills in what stream.c has */
void metal_graphs(gpu_api *);  /* what graph.c has */

/* Fills the table; NULL, or why there is no Metal. */
const char *metal_driver(gpu_api *);

#endif
