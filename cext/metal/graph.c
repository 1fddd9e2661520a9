/* graph.c: graphs (recorded launches of a step) on Metal. A command buffer can be committed only once, so a graph is an
 * indirect command buffer: each launch is a command of it, with its call in a buffer and a barrier before it. A replay
 * executes it with one call of a new command buffer's encoder.
 */
#include "metal.h"

#include <stdlib.h>
#include <string.h>

enum { DISPATCH = 1 << 5 /* concurrent dispatches of groups */, COMMANDS_MOST = 16384 };

typedef struct {
    metal_device *device;
    objc_id commands;
    uint64_t calls; /* address of the calls' buffer */
    int n;
} metal_ready;

static int capture(gpu_stream on, int mode) {
    metal_stream *s = on;
    (void)mode;
    if (s->recording || !(s->recording = calloc(1, sizeof *s->recording)))
        return metal_fail(METAL_INVALID, "the stream is already being recorded, or there is no memory");
    return 0;
}

static int end_capture(gpu_stream on, gpu_graph *out) {
    metal_stream *s = on;
    *out = s->recording;
    s->recording = NULL;
    return *out ? 0 : METAL_INVALID;
}

static int end_graph(gpu_graph of) {
    metal_graph *g = of;
    free(g->launches);
    free(g);
    return 0;
}

static objc_id make_commands(metal_device *d, int n) {
    objc_id description = objc_make("MTLIndirectCommandBufferDescriptor"), made;
    objc_set(description, objc.set_types, DISPATCH);
    objc_set_flag(description, objc.set_inherit_buffers, 0);
    objc_set_flag(description, objc.set_inherit_pipeline, 0);
    objc_set(description, objc.set_buffers_most, 1);
    if (SENT(signed char, objc_sel)(description, objc.responds, objc.set_locals_most)) /* macOS 14 */
        objc_set(description, objc.set_locals_most, 1);
    made = SENT(objc_id, objc_id, unsigned long, unsigned long)(d->is, objc.new_indirect, description, (unsigned long)n,
                                                                0);
    objc_release(description);
    return made;
}

static void encode(objc_id commands, int i, const metal_launch *l, objc_id calls) {
    objc_id command = SENT(objc_id, unsigned long)(commands, objc.command_at, (unsigned long)i);
    mtl_size threads = {l->threads, 1, 1};
    SENT(void, objc_id)(command, objc.set_pipeline, l->function->pipeline);
    SENT(void, objc_id, unsigned long, unsigned long)(command, objc.set_kernel_buffer, calls,
                                                      (unsigned long)i * METAL_CALL_STRIDE, 0);
    SENT(void, unsigned long, unsigned long)(command, objc.set_local, l->local, 0);
    objc_do(command, objc.set_barrier);
    SENT(void, mtl_size, mtl_size)(command, objc.dispatch_later, l->groups, threads);
}

static int make_ready(metal_device *d, const metal_graph *g, metal_ready *r) {
    void *host;
    int code = 0;
    *r = (metal_ready){.device = d, .n = g->n};
    if (g->n > COMMANDS_MOST)
        return metal_fail(METAL_INVALID, "%d launches: an indirect command buffer has at most %d", g->n, COMMANDS_MOST);
    for (int i = 0; !code && i < g->n; i++)
        code = metal_launch_fits(d, g->launches + i);
    if (!g->n || code || (code = metal_reserve(d, (size_t)g->n * METAL_CALL_STRIDE, &r->calls, &host)))
        return code;
    if (!(r->commands = make_commands(d, g->n))) {
        metal_give(d, r->calls);
        return metal_fail(METAL_NO_MEMORY, "Metal has no indirect command buffer of %d launches", g->n);
    }
    for (int i = 0; i < g->n; i++) {
        memcpy((uint8_t *)host + (size_t)i * METAL_CALL_STRIDE, &g->launches[i].call, sizeof(gpu_call));
        encode(r->commands, i, g->launches + i, metal_find(d, r->calls, 1)->is);
    }
    return 0;
}

static int instantiate(gpu_graph_exec *out, gpu_graph of, uint64_t flags) {
    metal_ready *r = calloc(1, sizeof *r);
    void *pool = objc.push();
    int code;
    (void)flags;
    pthread_mutex_lock(&metal_lock);
    code = r ? make_ready(metal_current, of, r) : METAL_NO_MEMORY;
    pthread_mutex_unlock(&metal_lock);
    objc.pop(pool);
    if (code) {
        free(r);
        return code;
    }
    *out = r;
    return 0;
}

static int replay(gpu_graph_exec of, gpu_stream on) {
    metal_ready *r = of;
    void *pool;
    if (!r->n)
        return 0;
    pool = objc.push();
    pthread_mutex_lock(&metal_lock);
    SENT(void, objc_id, mtl_range)(metal_encoder(on), objc.execute, r->commands, (mtl_range){0, (unsigned long)r->n});
    pthread_mutex_unlock(&metal_lock);
    objc.pop(pool);
    return 0;
}

static int end_graph_exec(gpu_graph_exec of) {
    metal_ready *r = of;
    pthread_mutex_lock(&metal_lock);
    if (r->n) {
        objc_release(r->commands);
        metal_give(r->device, r->calls);
    }
    pthread_mutex_unlock(&metal_lock);
    free(r);
    return 0;
}

void metal_graphs(gpu_api *out) {
    out->capture = capture, out->end_capture = end_capture, out->instantiate = instantiate, out->replay = replay;
    out->end_graph = end_graph, out->end_graph_exec = end_graph_exec;
}
