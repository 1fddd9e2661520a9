/* work.c: queues, command buffers, encoders and events of the tests' Metal. What is committed runs as
 * late as it may: when somebody waits for it, asks for its state a second time, or too much waits. Commands of an indirect
 * command buffer between two barriers run in any order.
 */
#include "mock.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

enum { OPEN = 0, COMMITTED = 2, COMPLETED = 4, UNDER_WAY = 64 /* command buffers of a queue */, BOTH = 3 };
enum { FLUSHED = 0x8040 /* small numbers are zero, as on the GPU */ };

typedef struct commands commands;

typedef struct {
    object base;
    commands *first; /* committed, in order */
    int n;
} queue;

typedef struct {
    object base;
    uint64_t value;
} event;

typedef enum { LAUNCH, EXECUTE, SIGNAL, AWAIT } kind;

typedef struct op op;
struct op {
    op *next;
    kind is;
    bound_launch launch;
    indirect *what;
    mtl_range range;
    event *event;
    uint64_t value;
    buffer **seen; /* that the encoder was told of */
    int n_seen;
};

struct commands {
    object base;
    queue *on;
    commands *next;
    op *ops, **last;
    object *encoder; /* open */
    int state, asked, running;
    double ended;
};

typedef struct {
    object base;
    commands *of;
    bound_launch now;
    buffer **seen;
    int n_seen, ended;
} encoder;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static queue *queues[16];
unsigned long long mock_launches, mock_replays;
class queue_class, commands_class, encoder_class, event_class;

/* --- running */

void do_launch(const bound_launch *l) {
    void *bound[INDICES];
    emulated_grid grid = {{(uint32_t)l->groups.width, (uint32_t)l->groups.height, (uint32_t)l->groups.depth},
                          (uint32_t)l->threads.width,
                          (uint32_t)l->local};
    const char *fault;
    for (int i = 0; i < INDICES; i++)
        bound[i] = l->bytes[i] ? (void *)l->bytes[i] : l->bound[i] ? (void *)(l->bound[i]->gpu + l->offsets[i]) : NULL;
#if defined(__x86_64__)
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | FLUSHED);
#endif
    fault = emulated_launch(&l->with->kernel, &grid, (const gpu_call *)(const void *)bound, mock_launches++);
#if defined(__x86_64__)
    _mm_setcsr(before);
#endif
    if (fault)
        wrong("%s", fault);
}

static int told_of(const op *o, const buffer *b) {
    for (int i = 0; i < o->n_seen; i++)
        if (o->seen[i] == b)
            return 1;
    return 0;
}

/* Those up to the next barrier, from the last to the first. */
static void execute(const op *o) {
    unsigned long end = o->range.location + o->range.length;
    mock_replays++;
    for (unsigned long i = o->range.location; i < end;) {
        unsigned long next = i + 1;
        while (next < end && !o->what->all[next].barrier)
            next++;
        for (unsigned long j = next; j-- > i;) {
            if (!o->what->all[j].with || !told_of(o, o->what->all[j].bound[0]))
                wrong("executeCommandsInBuffer: command %lu is empty, or its encoder was not told of its buffer", j);
            do_launch(o->what->all + j);
        }
        i = next;
    }
}

static void run_one(queue *);

static void run_op(op *o) {
    show(o->seen, o->n_seen);
    if (o->is == LAUNCH)
        do_launch(&o->launch);
    else if (o->is == EXECUTE)
        execute(o);
    else if (o->is == SIGNAL)
        o->event->value = o->value;
    show(NULL, 0);
    for (int i = 0; o->is == AWAIT && o->event->value < o->value; i++) {
        if (i == UNDER_WAY)
            wrong("encodeWaitForEvent: nobody signals %llu", (unsigned long long)o->value);
        for (int q = 0; q < 16; q++)
            if (queues[q] && queues[q]->first && !queues[q]->first->running)
                run_one(queues[q]);
    }
}

/* The queue's first command buffer. */
static void run_one(queue *q) {
    commands *c = q->first;
    struct timespec now;
    c->running = 1;
    for (op *o = c->ops; o; o = o->next)
        run_op(o);
    clock_gettime(CLOCK_MONOTONIC, &now);
    c->ended = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    c->state = COMPLETED;
    q->first = c->next;
    q->n--;
    released(c);
}

static void run_until(commands *c) {
    while (c->state == COMMITTED)
        run_one(c->on);
}

/* --- queues and events */

object *new_queue(object *device) {
    queue *q = make(&queue_class);
    (void)device;
    for (int i = 0; i < 16; i++)
        if (!queues[i]) {
            queues[i] = q;
            return &q->base;
        }
    wrong("newCommandQueue: 16 are open");
}

static void end_queue(object *o) {
    if (((queue *)o)->first)
        wrong("a queue ends while work waits in it");
    for (int i = 0; i < 16; i++)
        if (queues[i] == (queue *)o)
            queues[i] = NULL;
}

object *new_event(object *device) {
    (void)device;
    return make(&event_class);
}

static object *commands_of(queue *q) {
    commands *c = make(&commands_class);
    c->on = kept(q);
    c->last = &c->ops;
    return lent(c);
}

static const method queue_methods[] = {METHOD("commandBuffer", commands_of), {0}};
class queue_class = {"MTLCommandQueue", queue_methods, sizeof(queue), end_queue, 0};
class event_class = {"MTLEvent", NULL, sizeof(event), NULL, 0};

/* --- command buffers */

static op *add(commands *c, kind is) {
    op *o = calloc(1, sizeof *o);
    if (c->state != OPEN)
        wrong("-[MTLCommandBuffer ...]: it was committed");
    o->is = is;
    *c->last = o;
    c->last = &o->next;
    return o;
}

static void end_commands(object *o) {
    commands *c = (commands *)o;
    if (c->encoder)
        wrong("a command buffer ends while an encoder is open");
    for (op *next; c->ops; c->ops = next) {
        next = c->ops->next;
        for (int i = 0; i < INDICES; i++) {
            free(c->ops->launch.bytes[i]);
            if (c->ops->launch.bound[i])
                released(c->ops->launch.bound[i]);
        }
        if (c->ops->launch.with)
            released(c->ops->launch.with);
        if (c->ops->what)
            released(c->ops->what);
        if (c->ops->event)
            released(c->ops->event);
        for (int i = 0; i < c->ops->n_seen; i++)
            released(c->ops->seen[i]);
        free(c->ops->seen);
        free(c->ops);
    }
    released(c->on);
}

static object *encoder_of(commands *c) {
    encoder *e;
    if (c->encoder || c->state != OPEN)
        wrong("-[MTLCommandBuffer computeCommandEncoder]: another is open, or it was committed");
    e = make(&encoder_class);
    e->of = kept(c);
    c->encoder = &e->base;
    return lent(e);
}

static void commit(commands *c) {
    commands **last = &c->on->first;
    if (c->encoder || c->state != OPEN)
        wrong("-[MTLCommandBuffer commit]: an encoder is open, or it was committed before");
    pthread_mutex_lock(&lock);
    c->state = COMMITTED;
    while (*last)
        last = &(*last)->next;
    *last = kept(c);
    if (++c->on->n > UNDER_WAY)
        run_one(c->on);
    pthread_mutex_unlock(&lock);
}

static void wait(commands *c) {
    if (c->state == OPEN)
        wrong("-[MTLCommandBuffer waitUntilCompleted]: it was not committed");
    pthread_mutex_lock(&lock);
    run_until(c);
    pthread_mutex_unlock(&lock);
}

static unsigned long status(commands *c) {
    pthread_mutex_lock(&lock);
    if (c->state == COMMITTED && c->asked++)
        run_until(c);
    pthread_mutex_unlock(&lock);
    return (unsigned long)c->state;
}

static object *error(commands *c) {
    (void)c;
    return NULL;
}

static double end_time(commands *c) {
    if (c->state != COMPLETED)
        wrong("-[MTLCommandBuffer GPUEndTime]: it is not done");
    return c->ended;
}

static void signal_event(commands *c, selector s, object *e, uint64_t value) {
    op *o = add(c, SIGNAL);
    (void)s;
    if (c->encoder)
        wrong("encodeSignalEvent: an encoder is open");
    o->event = kept(as(&event_class, e, "encodeSignalEvent:"));
    o->value = value;
}

static void await_event(commands *c, selector s, object *e, uint64_t value) {
    signal_event(c, s, e, value);
    ((op *)(void *)((char *)c->last - offsetof(op, next)))->is = AWAIT;
}

static const method commands_methods[] = {
    METHOD("computeCommandEncoder", encoder_of),
    METHOD("commit", commit),
    METHOD("waitUntilCompleted", wait),
    METHOD("status", status),
    METHOD("error", error),
    METHOD("GPUEndTime", end_time),
    METHOD("encodeSignalEvent:value:", signal_event),
    METHOD("encodeWaitForEvent:value:", await_event),
    {0},
};
class commands_class = {"MTLCommandBuffer", commands_methods, sizeof(commands), end_commands, 0};

/* --- encoders */

static encoder *open_encoder(encoder *e, const char *what) {
    if (e->ended)
        wrong("-[MTLComputeCommandEncoder %s]: its encoding has ended", what);
    return e;
}

static void set_pipeline(encoder *e, selector s, object *p) {
    open_encoder(e, s)->now.with = as(&pipeline_class, p, s);
}

static void set_bytes(encoder *e, selector s, const void *from, unsigned long n, unsigned long index) {
    if (index >= INDICES || !n || n > BYTES_MOST)
        wrong("%s: %lu bytes at index %lu: at most %d, below %d", s, n, index, BYTES_MOST, INDICES);
    open_encoder(e, s);
    free(e->now.bytes[index]);
    e->now.bytes[index] = malloc(n);
    memcpy(e->now.bytes[index], from, n);
}

static void check_local(unsigned long n, unsigned long index, const char *who) {
    if (index || n % LOCAL_UNIT || n > LOCAL_MOST)
        wrong("%s: %lu bytes at index %lu: a multiple of %d, at most %d, at 0", who, n, index, LOCAL_UNIT, LOCAL_MOST);
}

static void set_local(encoder *e, selector s, unsigned long n, unsigned long index) {
    check_local(n, index, s);
    open_encoder(e, s)->now.local = n;
}

static void use(encoder *e, selector s, object *const *all, unsigned long n, unsigned long usage) {
    if (usage != BOTH || !n)
        wrong("%s: usage %lu of %lu resources", s, usage, n);
    open_encoder(e, s);
    e->seen = realloc(e->seen, ((unsigned long)e->n_seen + n) * sizeof *e->seen);
    for (unsigned long i = 0; i < n; i++)
        e->seen[e->n_seen++] = kept(as(&buffer_class, all[i], s));
}

void check_groups(const bound_launch *l, const char *who) {
    unsigned long n = l->threads.width * l->threads.height * l->threads.depth;
    if (!l->with || !l->local)
        wrong("%s: no pipeline, or no memory of the group", who);
    if (!l->bytes[0] && !l->bound[0])
        wrong("%s: kernel %s: buffer 0 is missing", who, l->with->kernel.name);
    if (!n || n > (unsigned long)l->with->kernel.threads || l->threads.height != 1 || l->threads.depth != 1)
        wrong("%s: kernel %s: %lu threads of a group, it takes %d", who, l->with->kernel.name, n,
              l->with->kernel.threads);
    if (!l->groups.width || !l->groups.height || !l->groups.depth)
        wrong("%s: kernel %s: no groups", who, l->with->kernel.name);
}

/* What the encoder was told of stays as long as the command buffer. */
static op *encoded(encoder *e, kind is) {
    op *o = add(e->of, is);
    o->seen = malloc((size_t)(e->n_seen + 1) * sizeof *o->seen);
    for (o->n_seen = 0; o->n_seen < e->n_seen; o->n_seen++)
        o->seen[o->n_seen] = kept(e->seen[o->n_seen]);
    return o;
}

static void dispatch(encoder *e, selector s, mtl_size groups, mtl_size threads) {
    op *o;
    open_encoder(e, s);
    e->now.groups = groups;
    e->now.threads = threads;
    check_groups(&e->now, s);
    o = encoded(e, LAUNCH);
    o->launch = e->now;
    kept(o->launch.with);
    memset(e->now.bytes, 0, sizeof e->now.bytes); /* whoever launches again binds again */
}

static void execute_later(encoder *e, selector s, object *what, mtl_range range) {
    op *o;
    as(&indirect_class, what, s);
    if (range.location + range.length > ((indirect *)what)->n || !range.length)
        wrong("%s: commands %lu and %lu more, of %lu", s, range.location, range.length, ((indirect *)what)->n);
    o = encoded(open_encoder(e, s), EXECUTE);
    o->what = kept(what);
    o->range = range;
}

static void end_encoding(encoder *e) {
    open_encoder(e, "endEncoding")->ended = 1;
    e->of->encoder = NULL;
}

static void end_encoder(object *o) {
    encoder *e = (encoder *)o;
    if (!e->ended)
        wrong("an encoder ends without endEncoding");
    for (int i = 0; i < e->n_seen; i++)
        released(e->seen[i]);
    for (int i = 0; i < INDICES; i++)
        free(e->now.bytes[i]);
    free(e->seen);
    released(e->of);
}

static const method encoder_methods[] = {
    METHOD("setComputePipelineState:", set_pipeline),
    METHOD("setBytes:length:atIndex:", set_bytes),
    METHOD("setThreadgroupMemoryLength:atIndex:", set_local),
    METHOD("useResources:count:usage:", use),
    METHOD("dispatchThreadgroups:threadsPerThreadgroup:", dispatch),
    METHOD("executeCommandsInBuffer:withRange:", execute_later),
    METHOD("endEncoding", end_encoding),
    {0},
};
class encoder_class = {"MTLComputeCommandEncoder", encoder_methods, sizeof(encoder), end_encoder, 0};

__attribute__((constructor)) static void begin(void) {
    class *all[] = {&queue_class, &event_class, &commands_class, &encoder_class};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tell(all[i]);
}
