/* driver.c: a driver that has the numbers of an H100 and memory of the host, knows every kernel by name, and runs none. Its
 * copies happen at once; handles of streams, events and modules stand for nothing.
 */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NO_MEMORY = 2, MAJOR = 0, MINOR, UNITS, SHARED, WAVE_WIDTH };

static char handle; /* of all that has no state */

static int init(unsigned flags) {
    (void)flags;
    return 0;
}

static int count(int *n) {
    *n = 1;
    return 0;
}

static int device(int *out, int index) {
    *out = index;
    return 0;
}

static int name(char *out, int size, int index) {
    (void)index;
    snprintf(out, (size_t)size, "dry");
    return 0;
}

static int attribute(int *out, int which, int index) {
    static const int values[] = {[MAJOR] = 9, [MINOR] = 0, [UNITS] = 132, [SHARED] = 227 << 10, [WAVE_WIDTH] = 32};
    (void)index;
    *out = values[which];
    return 0;
}

static int retain(gpu_context *out, int index) {
    (void)index;
    *out = &handle;
    return 0;
}

static int leave(int index) {
    (void)index;
    return 0;
}

static int done(void *of) {
    (void)of;
    return 0;
}

static int memory(size_t *unused, size_t *all) {
    *unused = *all = (size_t)64 << 30;
    return 0;
}

static int alloc(gpu_address *out, size_t n) {
    void *at = aligned_alloc(256, (n + 255) / 256 * 256);
    *out = (uint64_t)(uintptr_t)at;
    return at ? 0 : NO_MEMORY;
}

static int release(gpu_address at) {
    free((void *)(uintptr_t)at);
    return 0;
}

static int alloc_host(void **out, size_t n, unsigned flags) {
    (void)flags;
    *out = calloc(n ? n : 1, 1);
    return *out ? 0 : NO_MEMORY;
}

static int free_host(void *at) {
    free(at);
    return 0;
}

static int write(gpu_address to, const void *from, size_t n, gpu_stream s) {
    (void)s;
    memcpy((void *)(uintptr_t)to, from, n);
    return 0;
}

static int read(void *to, gpu_address from, size_t n, gpu_stream s) {
    (void)s;
    memcpy(to, (const void *)(uintptr_t)from, n);
    return 0;
}

static int copy(gpu_address to, gpu_address from, size_t n, gpu_stream s) {
    (void)s;
    memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, n);
    return 0;
}

static int fill(gpu_address to, unsigned char with, size_t n, gpu_stream s) {
    (void)s;
    memset((void *)(uintptr_t)to, with, n);
    return 0;
}

static int make(void **out, unsigned flags) {
    (void)flags;
    *out = &handle;
    return 0;
}

static int await(gpu_stream s, gpu_event e, unsigned flags) {
    (void)s, (void)e, (void)flags;
    return 0;
}

static int record(gpu_event e, gpu_stream s) {
    (void)e, (void)s;
    return 0;
}

static int elapsed(float *ms, gpu_event from, gpu_event to) {
    (void)from, (void)to;
    *ms = 0;
    return 0;
}

static int load(gpu_module *out, const void *image) {
    (void)image;
    *out = &handle;
    return 0;
}

static int function(gpu_function *out, gpu_module module, const char *wanted) {
    (void)module, (void)wanted;
    *out = &handle;
    return 0;
}

static int launch(gpu_function f, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz,
                  unsigned shared, gpu_stream s, void **arguments, void **more) {
    (void)f, (void)x, (void)y, (void)z, (void)tx, (void)ty, (void)tz, (void)shared, (void)s, (void)arguments,
        (void)more;
    return 0;
}

const char *dry_driver(gpu_api *out) {
    *out = (gpu_api){.init = init,
                     .count = count,
                     .device = device,
                     .name = name,
                     .attribute = attribute,
                     .retain = retain,
                     .leave = leave,
                     .enter = done,
                     .memory = memory,
                     .alloc = alloc,
                     .free = release,
                     .alloc_host = alloc_host,
                     .free_host = free_host,
                     .write = write,
                     .read = read,
                     .copy = copy,
                     .fill = fill,
                     .stream = make,
                     .end_stream = done,
                     .finish = done,
                     .await = await,
                     .event = make,
                     .end_event = done,
                     .record = record,
                     .reached = done,
                     .wait = done,
                     .elapsed = elapsed,
                     .load = load,
                     .unload = done,
                     .function = function,
                     .launch = launch,
                     .is = {MAJOR, MINOR, UNITS, SHARED, WAVE_WIDTH, 600}};
    return NULL;
}
