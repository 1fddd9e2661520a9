/* indirect.c: indirect command buffers of the tests' Metal: commands that are encoded once, each with what it binds. */
#include "mock.h"

#include <stdlib.h>

enum { DISPATCH = 1 << 5, COMMANDS_MOST = 16384 };

typedef struct {
    object base;
    unsigned long types, buffers, locals;
    int inherits;
} description;

typedef struct {
    object base;
    indirect *of;
    unsigned long at;
} command;

static void set_types(description *d, selector s, unsigned long types) {
    (void)s;
    d->types = types;
}

static void set_inherit(description *d, selector s, signed char yes) {
    (void)s;
    d->inherits -= !yes;
}

static void set_buffers(description *d, selector s, unsigned long n) {
    (void)s;
    d->buffers = n;
}

static void set_locals(description *d, selector s, unsigned long n) {
    (void)s;
    d->locals = n;
}

static const method description_methods[] = {
    METHOD("setCommandTypes:", set_types),
    METHOD("setInheritBuffers:", set_inherit),
    METHOD("setInheritPipelineState:", set_inherit),
    METHOD("setMaxKernelBufferBindCount:", set_buffers),
    METHOD("setMaxKernelThreadgroupMemoryBindCount:", set_locals),
    {0},
};
static class description_class = {"MTLIndirectCommandBufferDescriptor", description_methods, sizeof(description), NULL,
                                  0};
static class command_class;

object *new_indirect(object *device, selector s, object *with, unsigned long most, unsigned long options) {
    description *d = as(&description_class, with, s);
    indirect *made = make(&indirect_class);
    (void)device;
    if (d->types != DISPATCH || d->inherits != -2 || d->buffers != 1 || !most || most > COMMANDS_MOST || options)
        wrong("%s: types %lu, %lu buffers, %lu commands: own dispatches of one buffer are wanted", s, d->types,
              d->buffers, most);
    made->all = calloc(most, sizeof *made->all);
    made->n = most;
    made->locals = d->locals > 0;
    return &made->base;
}

static void end_indirect(object *o) {
    indirect *i = (indirect *)o;
    for (unsigned long at = 0; at < i->n; at++) {
        if (i->all[at].bound[0])
            released(i->all[at].bound[0]);
        if (i->all[at].with)
            released(i->all[at].with);
    }
    free(i->all);
}

static object *command_at(indirect *i, selector s, unsigned long at) {
    command *c = make(&command_class);
    if (at >= i->n)
        wrong("%s: %lu of %lu", s, at, i->n);
    c->of = kept(i);
    c->at = at;
    return lent(c);
}

static const method indirect_methods[] = {METHOD("indirectComputeCommandAtIndex:", command_at), {0}};
class indirect_class = {"MTLIndirectCommandBuffer", indirect_methods, sizeof(indirect), end_indirect, 0};

/* --- a command */

static void end_command(object *o) {
    released(((command *)o)->of);
}

static bound_launch *launch_of(command *c) {
    return c->of->all + c->at;
}

static void set_pipeline(command *c, selector s, object *p) {
    if (!((pipeline *)as(&pipeline_class, p, s))->indirect)
        wrong("%s: kernel %s was not made for indirect command buffers", s, ((pipeline *)p)->kernel.name);
    launch_of(c)->with = kept(p);
}

static void set_buffer(command *c, selector s, object *b, unsigned long offset, unsigned long index) {
    if (index || offset % OFFSET_UNIT || offset >= ((buffer *)as(&buffer_class, b, s))->length)
        wrong("%s: offset %lu at index %lu: a multiple of %d within the buffer, at 0", s, offset, index, OFFSET_UNIT);
    launch_of(c)->bound[0] = kept(b);
    launch_of(c)->offsets[0] = offset;
}

static void set_local(command *c, selector s, unsigned long n, unsigned long index) {
    if (!c->of->locals || index || n % LOCAL_UNIT || n > LOCAL_MOST)
        wrong("%s: %lu bytes at index %lu", s, n, index);
    launch_of(c)->local = n;
}

static void set_barrier(command *c) {
    launch_of(c)->barrier = 1;
}

static void dispatch(command *c, selector s, mtl_size groups, mtl_size threads) {
    launch_of(c)->groups = groups;
    launch_of(c)->threads = threads;
    check_groups(launch_of(c), s);
}

static const method command_methods[] = {
    METHOD("setComputePipelineState:", set_pipeline),
    METHOD("setKernelBuffer:offset:atIndex:", set_buffer),
    METHOD("setThreadgroupMemoryLength:atIndex:", set_local),
    METHOD("setBarrier", set_barrier),
    METHOD("concurrentDispatchThreadgroups:threadsPerThreadgroup:", dispatch),
    {0},
};
static class command_class = {"MTLIndirectComputeCommand", command_methods, sizeof(command), end_command, 0};

__attribute__((constructor)) static void begin(void) {
    tell(&indirect_class);
    tell(&description_class);
    tell(&command_class);
}
