/* backend.c: the CPU backend's hal_backend: devices, buffers, errors. plan.c compiles, run.c runs.
 *
 * There is one device index, 0. A device owns its threads. A buffer owns its memory unless it wraps host memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "limits.h"
#include "mapped.h"
#include "os.h"
#include "weights/panel.h"
#include "size.h"

enum { LARGE_PAGE = 2 << 20, OWN_PAGES = 1 << 16, ALIGN = 64, MAX_THREADS = 1024 };

static int score(void) {
    return 1;
}

static int count(void) {
    return 1;
}

/* In a forked child a thread that does not exist there may hold the mutex, so the mutex is not destroyed. */
static void close_device(hal_device *d) {
    cpu_leave_resident(d, NULL, NULL);
    if (!pool_forked(d->pool))
        pthread_mutex_destroy(&d->busy);
    pool_close(d->pool);
    cpu_drop_custom(d);
    free(d);
}

/* Reads the thread counts of the options, with their defaults. */
static int read_threads(const hal_options *options, int *threads, int *decode) {
    int prompt = options ? options->threads : 0, single = options ? options->threads_decode : 0;
    if (prompt < 0 || prompt > MAX_THREADS)
        return hal_fail(HAL_E_INVALID, "threads is %d: it must lie between 1 and %d", prompt, MAX_THREADS);
    if (single < 0 || single > MAX_THREADS)
        return hal_fail(HAL_E_INVALID, "threads_decode is %d: it must lie between 1 and %d", single, MAX_THREADS);
    *threads = prompt ? prompt : limits_default_threads();
    *decode = single ? single : *threads;
    return 0;
}

static int open_device(int index, const hal_options *options, hal_device **out) {
    const char *forced = getenv("SATCHEL_CPU");
    const cpu_set *set = cpu_set_best(forced && *forced ? forced : NULL);
    hal_device *d;
    int threads = 0, decode = 0, most, code;
    if (index != 0)
        return hal_fail(HAL_E_INVALID, "there is no CPU device %d, only 0", index);
    if ((code = read_threads(options, &threads, &decode)))
        return code;
    if (!set)
        return hal_fail(HAL_E_UNSUPPORTED, "SATCHEL_CPU=%s: no such kernel set runs on this CPU; %s",
                        forced ? forced : "", cpu_set_list);
    most = threads > decode ? threads : decode;
    d = calloc(1, sizeof *d);
    if (!d || !(d->pool = pool_open(most))) {
        free(d);
        return hal_fail(HAL_E_MEMORY, "cannot start %d threads", most);
    }
    d->set = set;
    d->flags = options ? options->flags : 0;
    d->threads = threads;
    d->threads_decode = decode;
    pthread_mutex_init(&d->busy, NULL);
    *out = d;
    return 0;
}

/* Copies the value of the line "key: value" of a /proc file; 0 if there is no such line. */
static int proc_value(const char *path, const char *key, char *out, size_t size) {
    FILE *file = fopen(path, "r");
    char line[256];
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');
        if (!value || strncmp(line, key, strlen(key)) != 0)
            continue;
        for (value++; *value == ' '; value++)
            continue;
        value[strcspn(value, "\n")] = 0;
        snprintf(out, size, "%s", value);
        found = 1;
    }
    if (file)
        fclose(file);
    return found;
}

static void info(hal_device *d, hal_info *out) {
    char kib[32];
    memset(out, 0, sizeof *out);
    if (!proc_value("/proc/cpuinfo", "model name", out->name, sizeof out->name))
        snprintf(out->name, sizeof out->name, "CPU");
    snprintf(out->variant, sizeof out->variant, "%s", d->set->name);
    out->memory_total = os_memory();
    out->memory_free = out->memory_total;
    if (proc_value("/proc/meminfo", "MemAvailable", kib, sizeof kib))
        out->memory_free = strtoull(kib, NULL, 10) * 1024;
    out->allocations = atomic_load(&d->allocations);
    out->threads = (uint32_t)d->threads;
    out->flags = HAL_HOST_MEMORY | HAL_EXPANDS;
}

static int new_buffer(hal_device *d, const hal_buffer *made, hal_buffer **out) {
    hal_buffer *b = malloc(sizeof *b);
    if (!b)
        return hal_fail(HAL_E_MEMORY, "no memory for a buffer's handle");
    *b = *made;
    b->device = d;
    atomic_fetch_add(&d->allocations, 1);
    *out = b;
    return 0;
}

/* Uses calloc, not an aligned allocation: the system gives zeroed pages lazily. Weights request huge pages: with small ones a
 * core spends a quarter of its memory read time on TLB misses. Values that cross devices and states have pages of their own, which
 * another device may lock. */
static int alloc_buffer(hal_device *d, const hal_bufdesc *desc, hal_buffer **out) {
    int large = desc->usage == HAL_WEIGHT && desc->size >= 2 * LARGE_PAGE;
    int own = desc->usage == HAL_LINK || desc->usage == HAL_STATE;
    uint64_t least = large ? LARGE_PAGE
                     : own ? OWN_PAGES
                           : ALIGN,
             align = desc->align > least ? desc->align : least, room;
    hal_buffer made = {.size = desc->size, .is_arena = desc->usage == HAL_ARENA};
    int code;
    if (align & (align - 1))
        return hal_fail(HAL_E_INVALID, "buffer: align is %llu, no power of two", (unsigned long long)align);
    room = own ? OWN_PAGES + align : align;
    if (desc->size > SIZE_MAX - room || !(made.owned = calloc(1, desc->size + room)))
        return hal_fail(HAL_E_MEMORY, "cannot reserve %llu bytes", (unsigned long long)desc->size);
    made.data = (uint8_t *)(((uintptr_t)made.owned + align - 1) & ~(uintptr_t)(align - 1));
    if (large)
        os_want_large_pages(made.data, desc->size);
    code = new_buffer(d, &made, out);
    if (code)
        free(made.owned);
    return code;
}

static int wrap_buffer(hal_device *d, const void *host, uint64_t size, hal_buffer **out) {
    int code;
    if (!host)
        return hal_fail(HAL_E_INVALID, "wrap: no host memory given");
    if ((code = new_buffer(d, &(hal_buffer){.data = (uint8_t *)(uintptr_t)host, .size = size}, out)))
        return code;
    (*out)->range = mapped_enter(host, size);
    return 0;
}

static void free_buffer(hal_buffer *b) {
    if (b && !b->owned)
        mapped_drop(b->range);
    if (b && b->is_arena)
        cpu_leave_resident(b->device, NULL, b);
    if (b)
        free(b->owned);
    free(b);
}

static int write_buffer(hal_buffer *b, uint64_t offset, const void *from, uint64_t size) {
    int code = hal_in_bounds(b->size, offset, size, "write");
    if (!code && !b->owned)
        return hal_fail(HAL_E_INVALID, "write: the buffer is the host's own memory");
    if (!code && size)
        memcpy(b->data + offset, from, size);
    return code;
}

static int read_buffer(hal_buffer *b, uint64_t offset, void *to, uint64_t size) {
    int code = hal_in_bounds(b->size, offset, size, "read");
    if (!code && size)
        memcpy(to, b->data + offset, size);
    return code;
}

static int copy_buffer(hal_buffer *to, uint64_t to_offset, hal_buffer *from, uint64_t from_offset, uint64_t size) {
    int code = hal_in_bounds(from->size, from_offset, size, "copy from");
    if (!code)
        code = hal_in_bounds(to->size, to_offset, size, "copy to");
    if (!code && !to->owned)
        return hal_fail(HAL_E_INVALID, "copy: the buffer is the host's own memory");
    if (!code && size)
        memmove(to->data + to_offset, from->data + from_offset, size);
    return code;
}

static void *host_memory(hal_buffer *b) {
    return b->data;
}

static uint64_t packed(hal_device *d, uint32_t format, int64_t stack, int64_t rows, int64_t columns) {
    uint64_t bytes = panel_stack_bytes(panel_format_find(format), stack, rows, columns);
    (void)d;
    return bytes == SIZE_TOO_MUCH ? 0 : bytes;
}

/* run() is synchronous, so there is nothing to wait for. */
static int wait_done(hal_exec *e, uint32_t timeout_ms) {
    (void)e, (void)timeout_ms;
    return 0;
}

static const hal_backend backend = {
    .hash = HAL_ABI_HASH,
    .name = "cpu",
    .score = score,
    .count = count,
    .open = open_device,
    .close = close_device,
    .info = info,
    .alloc = alloc_buffer,
    .wrap = wrap_buffer,
    .free = free_buffer,
    .write = write_buffer,
    .read = read_buffer,
    .copy = copy_buffer,
    .host = host_memory,
    .supports = cpu_supports,
    .compile = cpu_compile,
    .run = cpu_run,
    .wait = wait_done,
    .release = cpu_release,
    .error = hal_last_error,
    .times = cpu_times,
    .measure = cpu_measure,
    .packed = packed,
    .pack = cpu_pack,
    .add_kernel = cpu_add_kernel,
};

const hal_backend *cpu_backend(void) {
    return &backend;
}
