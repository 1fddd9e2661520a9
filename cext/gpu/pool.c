/* pool.c: caching allocator for device memory and pinned host memory. A freed block stays reserved for the next request of
 * about its size, because driver allocation is slow and freeing waits for running kernels.
 *
 * The device owns all blocks, in one list; each is in use or spare. Spare blocks go back to the driver when the device closes
 * or when the driver runs out of memory. A block's contents are undefined: a caller that needs zeros fills it. Callers hold
 * the device's lock.
 */
#include <stdlib.h>

#include "device.h"

enum { SLACK = 8 /* a block serves a request that it exceeds by up to 1/8 of the request */ };

static int fits(const hal_device *d, const gpu_block *b, int host, uint64_t size) {
    uint64_t slack =
        d->vendor->flags & HAL_TEST_ONLY ? 0 : size / SLACK; /* test devices check for writes past a block's end */
    return !b->used && b->host == host && b->size >= size && b->size - size <= slack;
}

static int reserve(hal_device *d, int host, uint64_t size, uint64_t *at) {
    void *pinned = NULL;
    int code = host ? d->api.alloc_host(&pinned, size, (unsigned)host) : d->api.alloc(at, size);
    if (host)
        *at = (uint64_t)(uintptr_t)pinned;
    return code;
}

static void give_back(hal_device *d, const gpu_block *b) {
    if (b->host)
        d->api.free_host((void *)(uintptr_t)b->at);
    else
        d->api.free(b->at);
}

/* Gives spare blocks back to the driver, and used ones too if `used` is 1; gives their number. */
static int drop(hal_device *d, int used) {
    int n = 0;
    for (gpu_block **place = &d->blocks, *b; (b = *place);) {
        if (b->used && !used) {
            place = &b->next;
            continue;
        }
        *place = b->next;
        give_back(d, b);
        free(b);
        n++;
    }
    return n;
}

static gpu_block *spare(hal_device *d, int host, uint64_t size) {
    gpu_block *best = NULL;
    for (gpu_block *b = d->blocks; b; b = b->next)
        if (fits(d, b, host, size) && (!best || b->size < best->size))
            best = b;
    return best;
}

int gpu_take(hal_device *d, int host, uint64_t size, uint64_t *at, const char *what) {
    gpu_block *b = spare(d, host, size);
    int code;
    if (!b) {
        if (!(b = calloc(1, sizeof *b)))
            return hal_fail(HAL_E_MEMORY, "no memory for a handle");
        *b = (gpu_block){.next = d->blocks, .size = size, .host = host};
        code = reserve(d, host, size, &b->at);
        if (code && drop(d, 0)) {
            b->next = d->blocks;
            code = reserve(d, host, size, &b->at);
        }
        if (code) {
            free(b);
            return gpu_check(d, code, what);
        }
        d->blocks = b;
    }
    b->used = 1;
    *at = b->at;
    return 0;
}

int gpu_take_host(hal_device *d, int flags, uint64_t size, void **out, const char *what) {
    uint64_t at = 0;
    int code = gpu_take(d, flags, size, &at, what);
    *out = (void *)(uintptr_t)at;
    return code;
}

void gpu_give(hal_device *d, uint64_t at) {
    for (gpu_block *b = d->blocks; at && b; b = b->next)
        if (b->at == at)
            b->used = 0;
}

uint64_t gpu_spare(const hal_device *d) {
    uint64_t bytes = 0;
    for (const gpu_block *b = d->blocks; b; b = b->next)
        bytes += b->used || b->host ? 0 : b->size;
    return bytes;
}

void gpu_drop(hal_device *d) {
    drop(d, 1);
}

void gpu_scratch_leave(hal_device *d, gpu_scratch *s) {
    if (!s || --s->users)
        return;
    gpu_give(d, s->at);
    free(s);
}

/* Execs share scratch, because they run one at a time. An exec that needs more allocates a larger one, which later execs
 * use. */
int gpu_scratch_take(hal_device *d, uint64_t size, gpu_scratch **out) {
    gpu_scratch *s = d->scratch;
    int code = 0;
    if (!s || s->size < size) {
        if (!(s = calloc(1, sizeof *s)))
            return hal_fail(HAL_E_MEMORY, "no memory for a handle");
        if ((code = gpu_take(d, 0, size, &s->at, "scratch memory"))) {
            free(s);
            return code;
        }
        s->size = size;
        s->users = 1; /* the device's own use */
        if (d->scratch)
            gpu_scratch_leave(d, d->scratch);
        d->scratch = s;
    }
    s->users++;
    *out = s;
    return 0;
}
