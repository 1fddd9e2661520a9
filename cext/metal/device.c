/* device.c: lists Metal's devices, and allocates memory that CPU and GPU share. */
#include "metal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAJOR = 1, MINOR, UNITS, SHARED, WAVE };
enum {
    DEVICES = 8,
    FAMILY_METAL_3 = 5001 /* addresses of buffers, one language of kernels */,
    LANES = 32,
    ANY_UNITS = 16
};
enum { FAMILY_APPLE = 1000 /* + 1 and so on, each with all that the one before has */, APPLE_MOST = 99 };
enum { SHARED_STORAGE = 0 };

pthread_mutex_t metal_lock = PTHREAD_MUTEX_INITIALIZER;
_Thread_local metal_device *metal_current;
static metal_device devices[DEVICES];
static int n_devices;
static char said[512];

int metal_fail(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(said, sizeof said, format, arguments);
    va_end(arguments);
    return code;
}

int metal_said(const char **out) {
    *out = said;
    return 0;
}

const char *metal_text(objc_id error) {
    const char *text = error ? SENT0(const char *)(objc_get(error, objc.description), objc.utf8) : NULL;
    return text ? text : "no reason was given";
}

static int is_of(objc_id device, long family) {
    return SENT(signed char, long)(device, objc.family, family);
}

/* Whether the device has unified memory and supports buffer addresses. */
static int usable(objc_id device) {
    return is_of(device, FAMILY_METAL_3) && SENT0(signed char)(device, objc.unified);
}

/* The newest Apple GPU family that the device supports; 0: not an Apple GPU. */
static int apple_family(objc_id device) {
    int n = 0;
    while (n < APPLE_MOST && is_of(device, FAMILY_APPLE + n + 1))
        n++;
    return n;
}

static int init(unsigned flags) {
    void *pool = objc.push();
    objc_id all = objc.all_devices();
    unsigned long n = all ? objc_number(all, objc.count) : 0;
    (void)flags;
    for (unsigned long i = 0; i < n && n_devices < DEVICES; i++) {
        objc_id device = SENT(objc_id, unsigned long)(all, objc.object_at, i);
        if (usable(device))
            devices[n_devices++].is = objc_keep(device);
    }
    objc_release(all);
    objc.pop(pool);
    return 0;
}

static int count(int *out) {
    *out = n_devices;
    return 0;
}

static int device(int *out, int index) {
    *out = index;
    return index >= 0 && index < n_devices ? 0 : METAL_INVALID;
}

static int name(char *out, int size, int index) {
    void *pool = objc.push();
    snprintf(out, (size_t)size, "%s", SENT0(const char *)(objc_get(devices[index].is, objc.name), objc.utf8));
    objc.pop(pool);
    return 0;
}

/* Metal does not report the number of cores; no partition of work here depends on it. */
static int attribute(int *out, int which, int index) {
    *out = which == MAJOR    ? apple_family(devices[index].is)
           : which == SHARED ? (int)objc_number(devices[index].is, objc.local_most)
           : which == UNITS  ? ANY_UNITS
           : which == WAVE   ? LANES
                             : 0;
    return 0;
}

static int retain(gpu_context *out, int index) {
    *out = devices + index;
    return 0;
}

static int leave(int index) {
    (void)index;
    return 0;
}

static int enter(gpu_context context) {
    metal_current = context;
    return 0;
}

static int memory(size_t *unused, size_t *all) {
    uint64_t most = SENT0(uint64_t)(metal_current->is, objc.working_set);
    uint64_t taken = objc_number(metal_current->is, objc.allocated);
    *all = most;
    *unused = taken < most ? most - taken : 0;
    return 0;
}

/* --- buffers; the lock is held */

metal_buffer *metal_find(metal_device *d, uint64_t address, uint64_t size) {
    for (int i = 0; i < d->n_buffers; i++) {
        metal_buffer *b = d->buffers + i;
        if (address >= b->address && address - b->address <= b->size && size <= b->size - (address - b->address))
            return b;
    }
    return NULL;
}

metal_buffer *metal_find_host(metal_device *d, const void *host, uint64_t size) {
    uint64_t at = (uint64_t)(uintptr_t)host;
    for (int i = 0; i < d->n_buffers; i++) {
        metal_buffer *b = d->buffers + i;
        uint64_t begin = (uint64_t)(uintptr_t)b->host;
        if (at >= begin && at - begin <= b->size && size <= b->size - (at - begin))
            return b;
    }
    return NULL;
}

static int make_room(metal_device *d) {
    int room = d->room ? 2 * d->room : 64;
    metal_buffer *buffers = realloc(d->buffers, (size_t)room * sizeof *buffers);
    objc_id *ids;
    if (!buffers)
        return METAL_NO_MEMORY;
    d->buffers = buffers;
    if (!(ids = realloc(d->ids, (size_t)room * sizeof *ids)))
        return METAL_NO_MEMORY;
    d->ids = ids;
    d->room = room;
    return 0;
}

/* Adds a buffer to the device's list; on failure releases it. */
static int list(metal_device *d, objc_id is, uint64_t size, metal_buffer *out) {
    int code = is ? d->n_buffers == d->room ? make_room(d) : 0 : METAL_NO_MEMORY;
    if (code) {
        objc_release(is);
        return metal_fail(code, "Metal has no buffer of %llu bytes", (unsigned long long)size);
    }
    *out = (metal_buffer){is, SENT0(uint64_t)(is, objc.address), SENT0(void *)(is, objc.contents), size};
    d->ids[d->n_buffers] = is;
    d->buffers[d->n_buffers++] = *out;
    d->changes++;
    return 0;
}

int metal_reserve(metal_device *d, size_t size, gpu_address *address, void **host) {
    metal_buffer b;
    int code;
    if (size > objc_number(d->is, objc.buffer_most))
        return metal_fail(METAL_NO_MEMORY, "%zu bytes: a buffer of this GPU has at most %lu", size,
                          objc_number(d->is, objc.buffer_most));
    if ((code = list(d, SENT(objc_id, unsigned long, unsigned long)(d->is, objc.new_buffer, size, SHARED_STORAGE), size,
                     &b)))
        return code;
    if (address)
        *address = b.address;
    if (host)
        *host = b.host;
    return 0;
}

int metal_give(metal_device *d, uint64_t address) {
    metal_buffer *b = metal_find(d, address, 1), *last = d->buffers + d->n_buffers - 1;
    if (!b)
        return metal_fail(METAL_INVALID, "there is no buffer at %llx", (unsigned long long)address);
    objc_release(b->is);
    d->ids[b - d->buffers] = d->ids[last - d->buffers];
    *b = *last;
    d->n_buffers--;
    d->changes++;
    return 0;
}

static int alloc(gpu_address *out, size_t size) {
    pthread_mutex_lock(&metal_lock);
    int code = metal_reserve(metal_current, size, out, NULL);
    pthread_mutex_unlock(&metal_lock);
    return code;
}

static int free_device(gpu_address at) {
    pthread_mutex_lock(&metal_lock);
    int code = metal_give(metal_current, at);
    pthread_mutex_unlock(&metal_lock);
    return code;
}

static int alloc_host(void **out, size_t size, unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&metal_lock);
    int code = metal_reserve(metal_current, size, NULL, out);
    pthread_mutex_unlock(&metal_lock);
    return code;
}

static int free_host(void *at) {
    pthread_mutex_lock(&metal_lock);
    metal_buffer *b = metal_find_host(metal_current, at, 1);
    int code = b ? metal_give(metal_current, b->address) : metal_fail(METAL_INVALID, "there is no buffer at %p", at);
    pthread_mutex_unlock(&metal_lock);
    return code;
}

static int seen(gpu_address *out, void *host) {
    pthread_mutex_lock(&metal_lock);
    metal_buffer *b = metal_find_host(metal_current, host, 1);
    *out = b ? b->address + (uint64_t)((uint8_t *)host - b->host) : 0;
    pthread_mutex_unlock(&metal_lock);
    return b ? 0 : metal_fail(METAL_INVALID, "%p is none of Metal's memory", host);
}

/* Wraps the whole pages that contain the bytes. */
static int wrap(gpu_address *out, const void *host, size_t size) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), at = (uint64_t)(uintptr_t)host, begin = at / page * page;
    uint64_t length = (at + size + page - 1) / page * page - begin;
    unsigned long most = objc_number(metal_current->is, objc.buffer_most);
    metal_buffer b;
    objc_id is;
    int code;
    if (length > most)
        return metal_fail(METAL_INVALID,
                          "%llu bytes of a file: a buffer of this GPU has at most %lu; cut the file in parts",
                          (unsigned long long)length, most);
    pthread_mutex_lock(&metal_lock);
    is = SENT(objc_id, void *, unsigned long, unsigned long,
              void *)(metal_current->is, objc.wrap_buffer, (void *)(uintptr_t)begin, length, SHARED_STORAGE, NULL);
    code = list(metal_current, is, length, &b);
    pthread_mutex_unlock(&metal_lock);
    *out = code ? 0 : b.address + (at - begin);
    return code;
}

void metal_devices(gpu_api *out) {
    *out = (gpu_api){
        .init = init,
        .count = count,
        .device = device,
        .name = name,
        .attribute = attribute,
        .retain = retain,
        .leave = leave,
        .enter = enter,
        .memory = memory,
        .alloc = alloc,
        .free = free_device,
        .alloc_host = alloc_host,
        .free_host = free_host,
        .seen = seen,
        .wrap = wrap,
        .said = metal_said,
        .is = {.major = MAJOR,
               .minor = MINOR,
               .units = UNITS,
               .shared = SHARED,
               .wave = WAVE,
               .not_ready = METAL_NOT_READY},
    };
}
