/* driver.c: a driver that has the numbers of an H100 and memory of the host, knows every kernel by name, and runs none but
 * those by which a group finds whether its members reach each other and how far they are in a library's sums. Its copies happen at once; handles of streams, events and
 * modules stand for nothing.
 *
 * SATCHEL_DRY_DEVICES: number of devices, default 1. SATCHEL_DRY_PEER: "none", devices have no peer access; "lost", they say that
 * they have, but nothing arrives. SATCHEL_DRY_LOSE=DEVICE: whatever is started there fails as on a broken GPU. SATCHEL_DRY_STALL=DEVICE: a
 * library's sums do not end there. SATCHEL_DRY_LOG=FILE: the names of the kernels that are started, a line each.
 * SATCHEL_DRY_ARCH, SATCHEL_DRY_DRIVER: another compute capability times 10, and what the driver says of its version.
 * SATCHEL_DRY_IMAGES: a file, the archive of images from which kernels are loaded. Such an image is a text: "sm_80" or
 * "compute_75", by which the driver takes or refuses it as NVIDIA's does, more, and "end". It refuses SATCHEL_DRY_REFUSED too.
 */
#include "driver.h"

#include "call.h"
#include "group_call.h"
#include "override.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 8, FAILED = 719 };
enum { NO_MEMORY = 2, BAD_IMAGE = 200, NO_BINARY = 209, INVALID = 1, NEWER_PTX = 222, CUDA_12 = 12000 };
enum { MAJOR = 0, MINOR, UNITS, SHARED, WAVE_WIDTH };

static char handle; /* of all that has no state */
static char contexts[DEVICES];
static _Thread_local const char *current;

static int init(unsigned flags) {
    (void)flags;
    return 0;
}

static int number_of(const char *variable, int usual) {
    const char *text = getenv(variable);
    return text ? atoi(text) : usual;
}

static int version(int *out) {
    *out = number_of("SATCHEL_DRY_DRIVER", 13000);
    return 0;
}

static int count(int *n) {
    *n = number_of("SATCHEL_DRY_DEVICES", 1);
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
    const int arch = number_of("SATCHEL_DRY_ARCH", 90);
    const int values[] = {
        [MAJOR] = arch / 10, [MINOR] = arch % 10, [UNITS] = 132, [SHARED] = 227 << 10, [WAVE_WIDTH] = 32};
    (void)index;
    *out = values[which];
    return 0;
}

static int retain(gpu_context *out, int index) {
    *out = contexts + index % DEVICES;
    return 0;
}

static int enter(gpu_context context) {
    current = context;
    return 0;
}

static int peer_is(const char *what) {
    const char *found = getenv("SATCHEL_DRY_PEER");
    return found && !strcmp(found, what);
}

static int can_reach(int *able, int from, int to) {
    *able = from != to && !peer_is("none");
    return 0;
}

static int reach(gpu_context other, unsigned flags) {
    (void)other, (void)flags;
    return 0;
}

/* The kernel prove_reach of ../cuda/reduce.cu. */
static void prove(const gpu_call *c) {
    const gpu_group *g = (const gpu_group *)(uintptr_t)c->arg[GROUP_ARG];
    for (uint32_t to = 0; to < g->members; to++) {
        uint32_t *words = (uint32_t *)(uintptr_t)group_place(g, to, g->rank, 0);
        for (uint32_t i = 0; to != g->rank && !peer_is("lost") && i < GROUP_PROVED; i++)
            words[i] = GROUP_PROOF(g->rank, to, i);
    }
}

/* round_rows and finish_rows of ../cuda/reduce.cu, but for the rows. */
static void go_on(const gpu_call *c, int ends) {
    const gpu_group *g = (const gpu_group *)(uintptr_t)c->arg[GROUP_ARG];
    const char *stall = getenv("SATCHEL_DRY_STALL");
    gpu_group_progress *host = (gpu_group_progress *)(uintptr_t)g->progress;
    const uint32_t number =
        (uint32_t)((const int32_t *)(uintptr_t)c->counts)[GROUP_COUNT] + (uint32_t)c->arg[GROUP_ARG_PLACE];
    if (!ends)
        host->step = c->step + 1;
    if (!ends)
        host->began = number;
    else if (!stall || current != contexts + atoi(stall) % DEVICES)
        host->ended = number;
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

/* NVIDIA's rules: machine code runs on its own capability and later ones of that major, with an "a" on its own alone; PTX on all
 * later ones, if the driver is not older than its version. */
static int takes(const char *image) {
    const char *refused = getenv("SATCHEL_DRY_REFUSED");
    int arch = number_of("SATCHEL_DRY_ARCH", 90), number = 0, driver;
    char letter = ' ';
    size_t n = strlen(image);
    version(&driver);
    if (n < 3 || strcmp(image + n - 3, "end"))
        return BAD_IMAGE;
    if (refused && !strncmp(image, refused, strlen(refused)))
        return NO_BINARY;
    if (sscanf(image, "compute_%d", &number) == 1)
        return driver < CUDA_12 ? NEWER_PTX : number <= arch ? 0 : NO_BINARY;
    if (sscanf(image, "sm_%d%c", &number, &letter) < 1)
        return BAD_IMAGE;
    if (letter == 'a')
        return number == arch ? 0 : NO_BINARY;
    return number / 10 == arch / 10 && number <= arch ? 0 : NO_BINARY;
}

static int load(gpu_module *out, const void *image) {
    *out = &handle;
    return dry_archive() ? takes(image) : 0;
}

/* A function's handle. */
typedef struct named {
    struct named *next;
    int shared; /* bytes of shared memory that a launch may have */
    char name[64];
} named;

enum { USUAL_SHARED = 48 << 10 };

static int function(gpu_function *out, gpu_module module, const char *wanted) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static named *all; /* never freed, because devices keep the names */
    named *found;
    (void)module;
    pthread_mutex_lock(&lock);
    for (found = all; found && strcmp(found->name, wanted) != 0; found = found->next)
        ;
    if (!found && (found = calloc(1, sizeof *found))) {
        snprintf(found->name, sizeof found->name, "%s", wanted);
        found->shared = USUAL_SHARED;
        found->next = all;
        all = found;
    }
    pthread_mutex_unlock(&lock);
    *out = found;
    return found ? 0 : NO_MEMORY;
}

static int allow(gpu_function f, int what, int value) {
    named *of = f;
    if (what == GPU_ALLOW_SHARED)
        of->shared = value;
    return 0;
}

/* Each line is one write at the end of the file, because several devices may log at once. */
static void tell(const char *kernel) {
    const char *path = getenv("SATCHEL_DRY_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file)
        return;
    fprintf(file, "%s\n", kernel);
    fclose(file);
}

static int launch(gpu_function f, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz,
                  unsigned shared, gpu_stream s, void **arguments, void **more) {
    const named *of = f;
    const char *lose = getenv("SATCHEL_DRY_LOSE"), *kernel = of->name;
    (void)x, (void)y, (void)z, (void)tx, (void)ty, (void)tz, (void)s, (void)more;
    if (shared > (unsigned)of->shared)
        return INVALID;
    if (!strcmp(kernel, "prove_reach"))
        prove(arguments[0]);
    else if (lose && current == contexts + atoi(lose) % DEVICES)
        return FAILED;
    else if (!strcmp(kernel, "round_rows") || !strcmp(kernel, "finish_rows"))
        go_on(arguments[0], !strcmp(kernel, "finish_rows"));
    tell(kernel);
    return 0;
}

const void *dry_archive(void) {
    static char known[512];
    static void *archive; /* of the file `known`; never freed, because devices keep pointers into it */
    const char *path = getenv("SATCHEL_DRY_IMAGES");
    FILE *file;
    long size;
    if (!path || !strcmp(path, known))
        return path ? archive : NULL;
    snprintf(known, sizeof known, "%s", path);
    archive = NULL;
    if (!(file = fopen(path, "rb")))
        return NULL;
    if (!fseek(file, 0, SEEK_END) && (size = ftell(file)) > 0 && (archive = calloc(1, (size_t)size)) &&
        (rewind(file), fread(archive, 1, (size_t)size, file) != (size_t)size))
        archive = NULL;
    fclose(file);
    return archive;
}

const char *dry_driver(gpu_api *out) {
    *out = (gpu_api){.init = init,
                     .version = version,
                     .count = count,
                     .device = device,
                     .name = name,
                     .attribute = attribute,
                     .retain = retain,
                     .leave = leave,
                     .enter = enter,
                     .can_reach = can_reach,
                     .reach = reach,
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
                     .allow = allow,
                     .launch = launch,
                     .is = {MAJOR, MINOR, UNITS, SHARED, WAVE_WIDTH, 600}};
    return NULL;
}
