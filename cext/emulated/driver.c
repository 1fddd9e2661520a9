/* driver.c: an emulated GPU driver on the CPU, for tests. It is as lazy as a driver may be: a stream's work runs only when the
 * host waits for it, in the stream's order, so host memory that is reused too early is detected. Device memory is poisoned when
 * allocated and has guard borders, which are checked after each launch. Kernels run in fibers.c. Their schedule follows from
 * SATCHEL_EMULATED_SEED (an integer, read when a device is opened) and the number of launches. SATCHEL_EMULATED_WITHOUT (read
 * then too) disables a barrier, so that a test can show that it is needed: "norm.k.h:21:1" is the first barrier of that line.
 *
 * SATCHEL_EMULATED_DEVICES: number of devices, default 1. SATCHEL_EMULATED_LOSE=[DEVICE:]N: that device, by default 0, is lost
 * at its N-th launch after it was opened, and every later call gives FAILED, as on a broken GPU.
 *
 * One lock guards everything. Streams, events, graphs and memory are the caller's until it ends them.
 */
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fibers.h"

enum { INVALID = 1, NO_MEMORY = 2, NOT_FOUND = 500, NOT_READY = 600, FAILED = 719 };
enum { MAJOR = 1, MINOR, UNITS, SHARED, WAVE_WIDTH };
enum { CARDS = 8, BORDER = 256, POISON = 0xFF, LOCAL_BYTES = 48 << 10, STRANGE_UNITS = 3 };

typedef enum { LAUNCH, COPY, FILL, RECORD, AWAIT } kind;

typedef struct {
    int users, lost;
    uint64_t launches, last; /* launches so far; the launch at which the device is lost, 0: never */
} card;

typedef struct stream stream;
typedef struct task task;

typedef struct {
    uint64_t asked, done; /* number of records queued; number of them done */
    stream *of;
    double at; /* seconds */
} event;

struct task {
    kind is;
    task *next;
    const emulated_kernel *kernel;
    emulated_grid grid;
    gpu_call call;
    void *to;
    const void *from;
    size_t size;
    unsigned char with;
    event *event;
    uint64_t turn; /* AWAIT: number of records that must be done */
};

typedef struct {
    task *first, **last;
} queue;

struct stream {
    card *of;
    queue waiting;
    queue *captured; /* not NULL: tasks are captured to this graph */
    int code;        /* error of the first failed task; reported once */
};

typedef struct memory memory;
struct memory {
    memory *next;
    uint8_t *all; /* with its borders */
    size_t size;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static memory *memories;
static uint64_t launches, seed;
static card cards[CARDS];
static _Thread_local card *current;

static void add(queue *q, task *t) {
    if (!q->first)
        q->last = &q->first;
    *q->last = t;
    q->last = &t->next;
}

static void drop(queue *q) {
    while (q->first) {
        task *t = q->first;
        q->first = t->next;
        free(t);
    }
}

/* --- running a stream's tasks */

static int whole(const uint8_t *border) {
    for (int i = 0; i < BORDER; i++)
        if (border[i] != POISON)
            return 0;
    return 1;
}

static const char *look_at_borders(void) {
    for (memory *m = memories; m; m = m->next)
        if (!whole(m->all) || !whole(m->all + BORDER + m->size))
            return "something was written outside of the buffers";
    return NULL;
}

static int do_launch(const task *t) {
    const char *fault = emulated_launch(t->kernel, &t->grid, &t->call, seed + launches++);
    if (!fault)
        fault = look_at_borders();
    if (fault)
        fprintf(stderr, "emulated: %s: %s\n", t->kernel->name, fault);
    return fault ? FAILED : 0;
}

static void run_until(const event *, uint64_t turn);

static void do_first(stream *s) {
    task *t = s->waiting.first;
    int code = 0;
    s->waiting.first = t->next;
    switch (t->is) {
    case LAUNCH:
        s->of->lost |= ++s->of->launches == s->of->last;
        code = s->code || s->of->lost ? FAILED : do_launch(t);
        break;
    case COPY:
        memmove(t->to, t->from, t->size);
        break;
    case FILL:
        memset(t->to, t->with, t->size);
        break;
    case RECORD: {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        t->event->at = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
        t->event->done++;
        break;
    }
    case AWAIT:
        run_until(t->event, t->turn);
    }
    s->code = s->code ? s->code : code;
    free(t);
}

static void run_until(const event *e, uint64_t turn) {
    while (e->done < turn && e->of->waiting.first)
        do_first(e->of);
}

static int told(stream *s) {
    int code = s && s->of->lost ? FAILED : s ? s->code : 0;
    if (s)
        s->code = 0;
    return code;
}

/* --- the table */

static int put(gpu_stream to, task what) {
    stream *s = to;
    task *t = s->of->lost ? NULL : malloc(sizeof *t);
    if (!t)
        return s->of->lost ? FAILED : NO_MEMORY;
    *t = what;
    t->next = NULL;
    pthread_mutex_lock(&lock);
    if (t->is == RECORD) {
        t->event->asked++;
        t->event->of = s;
    }
    if (t->is == AWAIT)
        t->turn = t->event->asked;
    add(s->captured ? s->captured : &s->waiting, t);
    pthread_mutex_unlock(&lock);
    return 0;
}

static int do_write(gpu_address to, const void *from, size_t n, gpu_stream s) {
    return put(s, (task){.is = COPY, .to = (void *)(uintptr_t)to, .from = from, .size = n});
}

static int do_read(void *to, gpu_address from, size_t n, gpu_stream s) {
    return put(s, (task){.is = COPY, .to = to, .from = (const void *)(uintptr_t)from, .size = n});
}

static int do_copy(gpu_address to, gpu_address from, size_t n, gpu_stream s) {
    return put(s, (task){.is = COPY, .to = (void *)(uintptr_t)to, .from = (const void *)(uintptr_t)from, .size = n});
}

static int do_fill(gpu_address to, unsigned char with, size_t n, gpu_stream s) {
    return put(s, (task){.is = FILL, .to = (void *)(uintptr_t)to, .with = with, .size = n});
}

static int do_record(gpu_event e, gpu_stream s) {
    return put(s, (task){.is = RECORD, .event = e});
}

static int do_await(gpu_stream s, gpu_event e, unsigned flags) {
    (void)flags;
    return put(s, (task){.is = AWAIT, .event = e});
}

static int launch(gpu_function f, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz,
                  unsigned local, gpu_stream s, void **arguments, void **more) {
    task t = {.is = LAUNCH, .kernel = f, .grid = {{x, y, z}, tx, local}};
    if (ty != 1 || tz != 1 || more || !x || !y || !z || y > 65535 || z > 65535)
        return INVALID;
    memcpy(&t.call, arguments[0], sizeof t.call);
    return put(s, t);
}

static int finish(gpu_stream of) {
    stream *s = of;
    int code;
    pthread_mutex_lock(&lock);
    while (s->waiting.first)
        do_first(s);
    code = told(s);
    pthread_mutex_unlock(&lock);
    return code;
}

static int wait_event(gpu_event of) {
    event *e = of;
    int code;
    pthread_mutex_lock(&lock);
    run_until(e, e->asked);
    code = told(e->of);
    pthread_mutex_unlock(&lock);
    return code;
}

/* Each query runs one more task, so polling makes progress. */
static int reached(gpu_event of) {
    event *e = of;
    int code = NOT_READY;
    pthread_mutex_lock(&lock);
    if (e->done < e->asked && e->of->waiting.first)
        do_first(e->of);
    if (e->done >= e->asked)
        code = told(e->of);
    pthread_mutex_unlock(&lock);
    return code;
}

static int elapsed(float *ms, gpu_event from, gpu_event to) {
    *ms = (float)((((event *)to)->at - ((event *)from)->at) * 1e3);
    return 0;
}

static int alloc(gpu_address *out, size_t n) {
    memory *m = current->lost ? NULL : malloc(sizeof *m);
    size_t all = n + 2 * BORDER;
    if (current->lost)
        return FAILED;
    if (!m || n > SIZE_MAX / 2 || !(m->all = aligned_alloc(256, (all + 192 + 255) / 256 * 256))) {
        free(m);
        return NO_MEMORY;
    }
    m->size = n;
    memset(m->all, POISON, all);
    pthread_mutex_lock(&lock);
    m->next = memories;
    memories = m;
    pthread_mutex_unlock(&lock);
    *out = (uint64_t)(uintptr_t)(m->all + BORDER);
    return 0;
}

static int free_memory(gpu_address at) {
    const char *fault;
    memory **m = &memories;
    pthread_mutex_lock(&lock);
    fault = look_at_borders();
    while (*m && (uint64_t)(uintptr_t)((*m)->all + BORDER) != at)
        m = &(*m)->next;
    if (*m) {
        memory *gone = *m;
        *m = gone->next;
        free(gone->all);
        free(gone);
    }
    pthread_mutex_unlock(&lock);
    return fault ? FAILED : 0;
}

static int alloc_host(void **out, size_t n, unsigned flags) {
    (void)flags;
    *out = malloc(n ? n : 1);
    return *out ? 0 : NO_MEMORY;
}

static int free_host(void *at) {
    free(at);
    return 0;
}

/* The tasks of a stream read host memory wherever it lies. */
static int pin(void *at, size_t n, unsigned flags) {
    (void)flags;
    return at && n ? 0 : INVALID;
}

static int unpin(void *at) {
    return at ? 0 : INVALID;
}

static int new_stream(gpu_stream *out, unsigned flags) {
    (void)flags;
    stream *s = calloc(1, sizeof *s);
    if (s)
        s->of = current;
    *out = s;
    return s ? 0 : NO_MEMORY;
}

static int end_stream(gpu_stream of) {
    int code = finish(of);
    free(of);
    return code;
}

static int new_event(gpu_event *out, unsigned flags) {
    (void)flags;
    *out = calloc(1, sizeof(event));
    return *out ? 0 : NO_MEMORY;
}

static int end_event(gpu_event of) {
    int code = wait_event(of);
    free(of);
    return code;
}

static int capture(gpu_stream of, int mode) {
    stream *s = of;
    (void)mode;
    s->captured = calloc(1, sizeof *s->captured);
    return s->captured ? 0 : NO_MEMORY;
}

static int end_capture(gpu_stream of, gpu_graph *out) {
    stream *s = of;
    *out = s->captured;
    s->captured = NULL;
    return *out ? 0 : INVALID;
}

static int end_graph(gpu_graph of) {
    drop(of);
    free(of);
    return 0;
}

static int instantiate(gpu_graph_exec *out, gpu_graph of, uint64_t flags) {
    queue *q = calloc(1, sizeof *q);
    (void)flags;
    for (const task *t = ((queue *)of)->first; q && t; t = t->next) {
        task *same = malloc(sizeof *same);
        if (!same || (t->is != LAUNCH && t->is != COPY && t->is != FILL)) {
            free(same);
            end_graph(q);
            return INVALID;
        }
        *same = *t;
        same->next = NULL;
        add(q, same);
    }
    *out = q;
    return q ? 0 : NO_MEMORY;
}

/* A graph is where it is needed as soon as it is made. */
static int upload(gpu_graph_exec of, gpu_stream s) {
    return of && s ? 0 : INVALID;
}

static int replay(gpu_graph_exec of, gpu_stream s) {
    int code = 0;
    for (const task *t = ((queue *)of)->first; t && !code; t = t->next)
        code = put(s, *t);
    return code;
}

static int init(unsigned flags) {
    (void)flags;
    return 0;
}

static int count_devices(int *n) {
    const char *text = getenv("SATCHEL_EMULATED_DEVICES");
    int wanted = text ? atoi(text) : 1;
    *n = wanted < 0 ? 0 : wanted < CARDS ? wanted : CARDS;
    return 0;
}

static int find_device(int *out, int index) {
    *out = index;
    return index < 0 || index >= CARDS ? INVALID : 0;
}

static int device_name(char *out, int size, int device) {
    (void)device;
    snprintf(out, (size_t)size, "emulated");
    return 0;
}

static int attribute(int *out, int which, int device) {
    static const int values[] = {
        [MAJOR] = 0, [MINOR] = 0, [UNITS] = STRANGE_UNITS, [SHARED] = LOCAL_BYTES, [WAVE_WIDTH] = 32};
    const emulated_kernel *any = emulated_find("linear");
    (void)device;
    *out = which == WAVE_WIDTH && any ? any->wave : values[which];
    return 0;
}

/* The launch at which a device is to be lost, from SATCHEL_EMULATED_LOSE. */
static uint64_t last_of(int device) {
    const char *text = getenv("SATCHEL_EMULATED_LOSE"), *colon = text ? strchr(text, ':') : NULL;
    if (!text || (colon ? atoi(text) : 0) != device)
        return 0;
    return strtoull(colon ? colon + 1 : text, NULL, 10);
}

static int retain(gpu_context *out, int device) {
    const char *text = getenv("SATCHEL_EMULATED_SEED");
    card *c = cards + device;
    pthread_mutex_lock(&lock);
    seed = text ? strtoull(text, NULL, 10) : 1;
    emulated_leave_out(getenv("SATCHEL_EMULATED_WITHOUT"));
    if (!c->users++)
        *c = (card){.users = 1, .last = last_of(device)};
    pthread_mutex_unlock(&lock);
    *out = c;
    return 0;
}

static int leave(int device) {
    pthread_mutex_lock(&lock);
    cards[device].users--;
    pthread_mutex_unlock(&lock);
    return 0;
}

static int enter(gpu_context context) {
    current = context;
    return current ? 0 : INVALID;
}

static int memory_left(size_t *unused, size_t *all) {
    *unused = *all = (size_t)64 << 30;
    return 0;
}

/* A custom kernel's code is the path of a shared library; built-in kernels need none. */
static int load(gpu_module *out, const void *image) {
    const char *path = image;
    emulated_words *words;
    *out = *path == '/' ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : &lock;
    if (!*out)
        fprintf(stderr, "emulated: %s\n", dlerror());
    if (!*out || *out == &lock)
        return *out ? 0 : NOT_FOUND;
    if ((words = dlsym(*out, "emulated_given")))
        *words = (emulated_words){emulated_barrier, emulated_take};
    return words ? 0 : NOT_FOUND;
}

static int unload(gpu_module module) {
    return module == &lock ? 0 : dlclose(module);
}

static int find_function(gpu_function *out, gpu_module module, const char *name) {
    char symbol[160];
    snprintf(symbol, sizeof symbol, "emulated_kernel_%s", name);
    *out = module == &lock ? (void *)(uintptr_t)emulated_find(name) : dlsym(module, symbol);
    return *out ? 0 : NOT_FOUND;
}

const char *emulated_driver(gpu_api *out) {
    *out = (gpu_api){.init = init,
                     .count = count_devices,
                     .device = find_device,
                     .name = device_name,
                     .attribute = attribute,
                     .retain = retain,
                     .leave = leave,
                     .enter = enter,
                     .memory = memory_left,
                     .alloc = alloc,
                     .free = free_memory,
                     .alloc_host = alloc_host,
                     .free_host = free_host,
                     .pin = pin,
                     .unpin = unpin,
                     .write = do_write,
                     .read = do_read,
                     .copy = do_copy,
                     .fill = do_fill,
                     .stream = new_stream,
                     .end_stream = end_stream,
                     .finish = finish,
                     .await = do_await,
                     .event = new_event,
                     .end_event = end_event,
                     .record = do_record,
                     .reached = reached,
                     .wait = wait_event,
                     .elapsed = elapsed,
                     .load = load,
                     .unload = unload,
                     .function = find_function,
                     .launch = launch,
                     .capture = capture,
                     .end_capture = end_capture,
                     .instantiate = instantiate,
                     .upload = upload,
                     .replay = replay,
                     .end_graph = end_graph,
                     .end_graph_exec = end_graph,
                     .is = {MAJOR, MINOR, UNITS, SHARED, WAVE_WIDTH, NOT_READY}};
    return NULL;
}
