/* stream.c: streams and events on Metal. A stream encodes into one command buffer until an event, a wait or a query commits
 * it. An event is recorded after a command buffer and has a counter: other streams wait for the counter, the host for the
 * buffer.
 */
#include "metal.h"

#include <stdlib.h>
#include <string.h>

enum { USE_BOTH = 3 /* read and written */, DONE = 4, ERROR = 5 };
enum { COPY_THREADS = 256, COPY_GROUPS = 1024, COPY_EACH = 16 /* bytes of a thread, or more */, LOCAL_UNIT = 16 };

typedef struct {
    objc_id is, last; /* an MTLEvent; the command buffer after which it was recorded */
    uint64_t count;
} metal_event;

/* --- encoding; the lock is held, and an autorelease pool exists */

objc_id metal_encoder(metal_stream *s) {
    metal_device *d = s->device;
    if (!s->commands)
        s->commands = objc_keep(objc_get(s->queue, objc.command_buffer));
    if (!s->encoder) {
        s->encoder = objc_keep(objc_get(s->commands, objc.encoder));
        s->used = d->changes - 1;
    }
    if (s->used != d->changes && d->n_buffers)
        SENT(void, const objc_id *, unsigned long, unsigned long)(s->encoder, objc.use, d->ids,
                                                                  (unsigned long)d->n_buffers, USE_BOTH);
    s->used = d->changes;
    return s->encoder;
}

static void end_encoder(metal_stream *s) {
    if (!s->encoder)
        return;
    objc_do(s->encoder, objc.end_encoding);
    objc_release(s->encoder);
    s->encoder = NULL;
}

static void note(metal_stream *s, objc_id commands) {
    if (objc_number(commands, objc.status) == ERROR && !s->code)
        s->code = metal_fail(METAL_FAILED, "the GPU gave up: %s", metal_text(objc_get(commands, objc.error)));
}

/* Releases finished command buffers, from the first on. */
static void forget(metal_stream *s) {
    for (metal_sent *first; (first = s->sent) && objc_number(first->commands, objc.status) >= DONE;) {
        note(s, first->commands);
        s->sent = first->next;
        objc_release(first->commands);
        free(first);
    }
}

/* Commits the current command buffer. */
static int commit(metal_stream *s) {
    metal_sent **last = &s->sent, *sent;
    if (!s->commands)
        return 0;
    end_encoder(s);
    if (!(sent = calloc(1, sizeof *sent)))
        return METAL_NO_MEMORY;
    objc_do(s->commands, objc.commit);
    sent->commands = s->commands;
    s->commands = NULL;
    forget(s);
    while (*last)
        last = &(*last)->next;
    *last = sent;
    return 0;
}

static int settle(metal_stream *s) {
    int code = commit(s);
    for (metal_sent *sent = s->sent; sent; sent = sent->next)
        objc_do(sent->commands, objc.wait);
    forget(s);
    if (!code) {
        code = s->code;
        s->code = 0;
    }
    return code;
}

int metal_launch_fits(const metal_device *d, const metal_launch *l) {
    unsigned long local = objc_number(d->is, objc.local_most);
    if (l->threads > l->function->most)
        return metal_fail(METAL_INVALID, "kernel %s: %u threads a group, this GPU takes %lu of it", l->function->name,
                          l->threads, l->function->most);
    if (l->local > local)
        return metal_fail(METAL_INVALID, "kernel %s: %u bytes of local memory, a group has %lu", l->function->name,
                          l->local, local);
    return 0;
}

int metal_put(metal_stream *s, const metal_launch *l) {
    mtl_size threads = {l->threads, 1, 1};
    objc_id encoder;
    int code = metal_launch_fits(s->device, l);
    if (code)
        return code;
    encoder = metal_encoder(s);
    SENT(void, objc_id)(encoder, objc.set_pipeline, l->function->pipeline);
    SENT(void, const void *, unsigned long, unsigned long)(encoder, objc.set_bytes, &l->call, sizeof l->call, 0);
    SENT(void, unsigned long, unsigned long)(encoder, objc.set_local, l->local, 0);
    SENT(void, mtl_size, mtl_size)(encoder, objc.dispatch, l->groups, threads);
    return 0;
}

static int record_launch(metal_graph *g, const metal_launch *l) {
    if (g->n == g->room) {
        int room = g->room ? 2 * g->room : 64;
        metal_launch *launches = realloc(g->launches, (size_t)room * sizeof *launches);
        if (!launches)
            return METAL_NO_MEMORY;
        g->launches = launches;
        g->room = room;
    }
    g->launches[g->n++] = *l;
    return 0;
}

static int put(metal_stream *s, const metal_launch *l) {
    void *pool = objc.push();
    pthread_mutex_lock(&metal_lock);
    int code = s->recording ? record_launch(s->recording, l) : metal_put(s, l);
    pthread_mutex_unlock(&metal_lock);
    objc.pop(pool);
    return code;
}

/* --- the table's functions */

static int stream(gpu_stream *out, unsigned flags) {
    metal_stream *s = calloc(1, sizeof *s);
    (void)flags;
    if (!s)
        return METAL_NO_MEMORY;
    s->device = metal_current;
    s->queue = objc_get(metal_current->is, objc.new_queue);
    if (!s->queue) {
        free(s);
        return metal_fail(METAL_FAILED, "Metal gives no command queue");
    }
    *out = s;
    return 0;
}

static int finish(gpu_stream of) {
    void *pool = objc.push();
    pthread_mutex_lock(&metal_lock);
    int code = settle(of);
    pthread_mutex_unlock(&metal_lock);
    objc.pop(pool);
    return code;
}

static int end_stream(gpu_stream of) {
    metal_stream *s = of;
    finish(s);
    objc_release(s->queue);
    free(s);
    return 0;
}

static int launch(gpu_function f, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned y_threads,
                  unsigned z_threads, unsigned shared, gpu_stream s, void **arguments, void **extra) {
    metal_launch l = {.function = f, .groups = {x, y, z}, .threads = threads};
    (void)y_threads, (void)z_threads, (void)extra;
    l.local = shared ? (shared + LOCAL_UNIT - 1) / LOCAL_UNIT * LOCAL_UNIT : LOCAL_UNIT;
    l.call = *(const gpu_call *)arguments[0];
    return put(s, &l);
}

static int move(metal_function *f, gpu_address to, gpu_address from, size_t size, unsigned char with, gpu_stream s) {
    metal_launch l = {.function = f, .groups = {1, 1, 1}, .threads = COPY_THREADS, .local = LOCAL_UNIT};
    size_t groups = (size + COPY_THREADS * COPY_EACH - 1) / (COPY_THREADS * COPY_EACH);
    if (!size)
        return 0;
    l.groups.width = groups < COPY_GROUPS ? groups : COPY_GROUPS;
    l.call.mode = with;
    l.call.v[0] = (gpu_view){.data = to, .stride = size, .shape = {(int32_t)l.groups.width, 1, 1, 1}, .count = -1};
    l.call.v[1] = (gpu_view){.data = from, .stride = size, .shape = {1, 1, 1, 1}, .count = -1};
    return put(s, &l);
}

static int copy(gpu_address to, gpu_address from, size_t size, gpu_stream s) {
    return move(metal_current->copy, to, from, size, 0, s);
}

static int fill(gpu_address to, unsigned char with, size_t size, gpu_stream s) {
    return move(metal_current->fill, to, to, size, with, s);
}

/* GPU address of host memory that Metal allocated; 0: other memory. */
static gpu_address address_of(const void *host, size_t size) {
    pthread_mutex_lock(&metal_lock);
    metal_buffer *b = metal_find_host(metal_current, host, size);
    gpu_address at = b ? b->address + (uint64_t)((const uint8_t *)host - b->host) : 0;
    pthread_mutex_unlock(&metal_lock);
    return at;
}

/* Host address of device memory, after waiting for the stream; NULL and *code on failure. */
static uint8_t *host_of(gpu_address at, size_t size, metal_stream *s, int *code) {
    metal_buffer *b;
    if (s->recording || (*code = finish(s))) {
        *code = *code ? *code : metal_fail(METAL_INVALID, "a graph moves bytes between Metal's buffers alone");
        return NULL;
    }
    pthread_mutex_lock(&metal_lock);
    b = metal_find(metal_current, at, size);
    pthread_mutex_unlock(&metal_lock);
    if (!b)
        *code = metal_fail(METAL_INVALID, "there is no buffer at %llx", (unsigned long long)at);
    return b ? b->host + (at - b->address) : NULL;
}

static int write_to(gpu_address to, const void *from, size_t size, gpu_stream s) {
    gpu_address at = address_of(from, size);
    uint8_t *host;
    int code = 0;
    if (at)
        return copy(to, at, size, s);
    if ((host = host_of(to, size, s, &code)))
        memcpy(host, from, size);
    return code;
}

static int read_from(void *to, gpu_address from, size_t size, gpu_stream s) {
    gpu_address at = address_of(to, size);
    uint8_t *host;
    int code = 0;
    if (at)
        return copy(at, from, size, s);
    if ((host = host_of(from, size, s, &code)))
        memcpy(to, host, size);
    return code;
}

static int event(gpu_event *out, unsigned flags) {
    metal_event *e = calloc(1, sizeof *e);
    (void)flags;
    if (!e)
        return METAL_NO_MEMORY;
    e->is = objc_get(metal_current->is, objc.new_event);
    *out = e;
    return 0;
}

static int end_event(gpu_event of) {
    metal_event *e = of;
    objc_release(e->last);
    objc_release(e->is);
    free(e);
    return 0;
}

static int record_event(gpu_event of, gpu_stream on) {
    metal_event *e = of;
    metal_stream *s = on;
    void *pool = objc.push();
    int code;
    pthread_mutex_lock(&metal_lock);
    metal_encoder(s);
    end_encoder(s);
    SENT(void, objc_id, uint64_t)(s->commands, objc.signal, e->is, ++e->count);
    objc_release(e->last);
    e->last = objc_keep(s->commands);
    code = commit(s);
    pthread_mutex_unlock(&metal_lock);
    objc.pop(pool);
    return code;
}

static int await(gpu_stream on, gpu_event of, unsigned flags) {
    metal_event *e = of;
    metal_stream *s = on;
    void *pool = objc.push();
    (void)flags;
    pthread_mutex_lock(&metal_lock);
    if (e->count) {
        metal_encoder(s);
        end_encoder(s);
        SENT(void, objc_id, uint64_t)(s->commands, objc.await, e->is, e->count);
    }
    pthread_mutex_unlock(&metal_lock);
    objc.pop(pool);
    return 0;
}

/* State of the command buffer before an event; with `waits` set, waits until it is done. */
static int state_of(metal_event *e, int waits) {
    void *pool = objc.push();
    objc_id last;
    unsigned long status = DONE;
    int code = 0;
    pthread_mutex_lock(&metal_lock);
    last = objc_keep(e->last);
    pthread_mutex_unlock(&metal_lock);
    if (last && waits)
        objc_do(last, objc.wait);
    if (last)
        status = objc_number(last, objc.status);
    if (status == ERROR)
        code = metal_fail(METAL_FAILED, "the GPU gave up: %s", metal_text(objc_get(last, objc.error)));
    else if (status < DONE)
        code = METAL_NOT_READY;
    objc_release(last);
    objc.pop(pool);
    return code;
}

static int reached(gpu_event e) {
    return state_of(e, 0);
}

static int wait_for(gpu_event e) {
    return state_of(e, 1);
}

static int elapsed(float *ms, gpu_event from, gpu_event to) {
    metal_event *a = from, *b = to;
    *ms = (float)((SENT0(double)(b->last, objc.end_time) - SENT0(double)(a->last, objc.end_time)) * 1e3);
    return 0;
}

void metal_streams(gpu_api *out) {
    out->stream = stream, out->end_stream = end_stream, out->finish = finish, out->await = await;
    out->event = event, out->end_event = end_event, out->record = record_event, out->reached = reached,
    out->wait = wait_for;
    out->elapsed = elapsed, out->launch = launch, out->write = write_to, out->read = read_from, out->copy = copy,
    out->fill = fill;
}
