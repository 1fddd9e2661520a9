/* group.c: groups of GPUs (tensor parallelism). Each member has an inbox in its memory, which the kernels of the others' collectives
 * write (group_call.h); here inboxes are made, plans are compared, and a step is started on all members.
 *
 * The group's lock comes before the locks of its devices. Whatever may wait for a device (memory, transfers, compile) takes it too,
 * so it never comes between the starts of one step on two members: a member whose run has begun waits for the others', and a driver
 * that waits for that member may let no other begin. What has begun on all ends by itself, within the timeout.
 *
 * A group breaks when a kernel gives up or a device fails. The word `broken` of the host's memory tells all kernels, which leave. It
 * stays broken.
 */
#include "group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "launchers.h"

enum { ATOMICS = 3 /* CUDA: attribute of a pair of devices, which NVLink has and PCIe has not */ };
enum { KB = 1 << 10, ALREADY = 704 /* CUDA: peer access is enabled */, NS_PER_MS = 1000000, POLL_NS = 100000 };
enum { PLACE = 16 * KB /* bytes of a place at first */, PROOF_MS = 10000, RESTART = 1 << 30 };

/* The run that each launcher starts. */
typedef struct {
    hal_exec *const *execs;
    const void *block;
    uint64_t size;
    int codes[HAL_MEMBERS];
    char why[HAL_MEMBERS][256];
} step;

struct hal_group {
    pthread_mutex_t lock;
    hal_device *devices[HAL_MEMBERS];
    uint32_t members, timeout_ms;
    int exact;                        /* sums travel as float32 */
    gpu_group on_device[HAL_MEMBERS]; /* as the members have them */
    gpu_address at[HAL_MEMBERS], counts[HAL_MEMBERS], inbox[HAL_MEMBERS];
    uint32_t *broken;        /* pinned, of the first member, seen by all */
    gpu_group_fault *faults; /* likewise, one a member */
    uint32_t before;         /* collectives since the inboxes were cleared */
    uint64_t meetings;
    launchers *launchers;
    step now;
    uint32_t link; /* HAL_LINK_ of the slowest pair */
    int missing;   /* -1: the group is whole */
    char why[256];
};

static void lock_group(hal_group *g) {
    pthread_mutex_lock(&g->lock);
}

static void unlock_group(hal_group *g) {
    pthread_mutex_unlock(&g->lock);
}

/* --- faults */

static void break_group(hal_group *g, uint32_t rank, const char *why) {
    if (g->missing >= 0)
        return;
    g->missing = (int)rank;
    snprintf(g->why, sizeof g->why, "%s", why);
    *(volatile uint32_t *)g->broken = 1;
}

static int read_counts(hal_group *g, uint32_t i, gpu_group_counts *out) {
    hal_device *d = g->devices[i];
    int code = gpu_lock(d);
    if (code)
        return code;
    code = gpu_check(d, d->api.read(out, g->counts[i], sizeof *out, d->side), "reading a group's counts");
    if (!code)
        code = gpu_check(d, d->api.finish(d->side), "reading a group's counts");
    gpu_unlock(d);
    return code;
}

/* The member that came to the fewest collectives, or one that cannot say it. */
static uint32_t least_number(hal_group *g) {
    uint64_t least = UINT64_MAX;
    uint32_t found = 0;
    for (uint32_t i = 0; i < g->members; i++) {
        gpu_group_counts counts = {0};
        if (read_counts(g, i, &counts))
            counts.number = 0;
        if (counts.number < least) {
            least = counts.number;
            found = i;
        }
    }
    return found;
}

/* What the kernels wrote when they gave up. Of several the first number counts: later ones failed because of it. */
static void look_at_faults(hal_group *g) {
    const volatile gpu_group_fault *first = NULL;
    char why[256];
    uint32_t missing;
    if (g->missing >= 0 || !*(volatile uint32_t *)g->broken)
        return;
    for (uint32_t i = 0; i < g->members; i++) {
        const volatile gpu_group_fault *f = g->faults + i;
        if (f->step && (!first || f->number < first->number))
            first = f;
    }
    if (!first)
        return;
    missing = first->missing == GROUP_SOMEONE ? least_number(g) : first->missing;
    snprintf(why, sizeof why, "member %u did not come to %s of step %u within %u ms", missing,
             first->op == GROUP_REDUCE ? "reduce_add" : "gather_columns", first->step - 1, g->timeout_ms);
    break_group(g, missing, why);
}

static int fault_of(hal_group *g, uint32_t rank, int code) {
    char why[256];
    lock_group(g);
    look_at_faults(g);
    if (g->missing < 0 && (code == HAL_E_LOST || code == HAL_E_DEVICE)) {
        snprintf(why, sizeof why, "member %u: %.200s", rank, hal_last_error());
        break_group(g, rank, why);
    }
    if (g->missing >= 0 && code != HAL_E_TIMEOUT)
        code = hal_fail(HAL_E_LOST, "%s", g->why);
    unlock_group(g);
    return code;
}

/* --- inboxes */

static int finish_all(hal_group *g) {
    int code = 0;
    for (uint32_t i = 0; i < g->members && !code; i++) {
        hal_device *d = g->devices[i];
        if (!(code = gpu_lock(d))) {
            code = gpu_check(d, d->api.finish(d->main), "waiting for the last step");
            gpu_unlock(d);
        }
    }
    return code;
}

static uint64_t inbox_bytes(const hal_group *g, uint64_t place) {
    return place * GROUP_SLOTS * (g->members > 1 ? g->members - 1 : 1);
}

static int clear_inbox(hal_group *g, uint32_t i) {
    hal_device *d = g->devices[i];
    int code = gpu_lock(d);
    if (code)
        return code;
    code =
        gpu_check(d, d->api.fill(g->inbox[i], 0, inbox_bytes(g, g->on_device[i].place), d->main), "clearing an inbox");
    if (!code)
        code = gpu_check(d, d->api.finish(d->main), "clearing an inbox");
    gpu_unlock(d);
    return code;
}

/* Collectives are numbered from 1 on again. */
static int restart(hal_group *g) {
    int code = finish_all(g);
    for (uint32_t i = 0; i < g->members && !code; i++)
        code = clear_inbox(g, i);
    g->before = 0;
    return code;
}

static int send_group(hal_group *g, uint32_t i) {
    hal_device *d = g->devices[i];
    int code = gpu_lock(d);
    if (code)
        return code;
    code = gpu_check(d, d->api.write(g->at[i], g->on_device + i, sizeof *g->on_device, d->main), "sending a group");
    if (!code)
        code = gpu_check(d, d->api.finish(d->main), "sending a group");
    gpu_unlock(d);
    return code;
}

/* Gives all members inboxes whose places have so many bytes, if theirs have less. No step is under way after it; plans that were
 * compiled before go on. */
static int grow_inboxes(hal_group *g, uint64_t place) {
    int code = 0;
    if (place <= g->on_device[0].place || (code = finish_all(g)))
        return code;
    for (uint32_t i = 0; i < g->members && !code; i++) {
        hal_device *d = g->devices[i];
        if ((code = gpu_lock(d)))
            break;
        if (g->inbox[i])
            d->api.free(g->inbox[i]);
        g->inbox[i] = 0;
        code = gpu_check(d, d->api.alloc(&g->inbox[i], inbox_bytes(g, place)), "memory for an inbox");
        gpu_unlock(d);
    }
    for (uint32_t i = 0; i < g->members; i++) {
        g->on_device[i].place = code ? 0 : place;
        memcpy(g->on_device[i].inbox, g->inbox, g->members * sizeof *g->inbox);
    }
    for (uint32_t i = 0; i < g->members && !code; i++)
        if (!(code = send_group(g, i)))
            code = clear_inbox(g, i);
    if (code)
        break_group(g, 0, hal_last_error()); /* plans that were compiled before have no inboxes */
    return code;
}

/* --- joining */

/* Lets member i write the memory of all others. */
static int reach_others(hal_group *g, uint32_t i) {
    hal_device *d = g->devices[i];
    int code = 0, able, said;
    for (uint32_t j = 0; j < g->members && !code; j++) {
        hal_device *other = g->devices[j];
        if (i == j)
            continue;
        if (d->api.can_reach(&able, d->ordinal, other->ordinal) || !able)
            return hal_fail(
                HAL_E_UNSUPPORTED,
                "devices %d and %d cannot write each other's memory (no peer access over NVLink or PCIe): give "
                "whole layers to each, -sm layer",
                d->ordinal, other->ordinal);
        if (!d->api.pair || d->api.pair(&able, ATOMICS, d->ordinal, other->ordinal) || !able)
            g->link = HAL_LINK_PCIE;
        if ((code = gpu_lock(d)))
            return code;
        said = d->api.reach(other->context, 0);
        if (said != ALREADY)
            code = gpu_check(d, said, "peer access");
        gpu_unlock(d);
    }
    return code;
}

/* Measured on two and four H200s (bench/gpu_kernels/reduce.cu, docs/parallel.md). Under HAL_DETERMINISTIC and HAL_GROUP_EXACT all
 * travels as float32: then a sum has the same bits in each way. */
static void set_borders(gpu_group *g, int exact) {
    const int many = g->members > 2;
    g->bf16_least = exact ? UINT64_MAX : (many ? 256 : 512) * KB + 1;
    g->two_least = many ? 1536 * KB : UINT64_MAX;
}

static int make_member(hal_group *g, uint32_t i, uint32_t timeout_ms) {
    hal_device *d = g->devices[i];
    gpu_group *own = g->on_device + i;
    int code = gpu_lock(d);
    if (code)
        return code;
    code = gpu_check(d, d->api.alloc(&g->at[i], sizeof *own), "memory for a group");
    if (!code)
        code = gpu_check(d, d->api.alloc(&g->counts[i], sizeof(gpu_group_counts)), "memory for a group");
    if (!code)
        code = gpu_check(d, d->api.fill(g->counts[i], 0, sizeof(gpu_group_counts), d->main), "memory for a group");
    gpu_unlock(d);
    own->rank = i;
    own->members = g->members;
    own->timeout_ns = (uint64_t)timeout_ms * NS_PER_MS;
    own->counts = g->counts[i];
    own->broken = (uint64_t)(uintptr_t)g->broken;
    own->fault = (uint64_t)(uintptr_t)(g->faults + i);
    set_borders(own, g->exact || d->traits.flags & HAL_DETERMINISTIC);
    return code;
}

/* Waits for the stream, a while at most: a path that does not work may never end a store. */
static int end_proof(hal_device *d, gpu_event e) {
    const struct timespec pause = {0, POLL_NS};
    int state = d->api.is.not_ready;
    for (uint64_t waited = 0; waited < (uint64_t)PROOF_MS * NS_PER_MS; waited += POLL_NS) {
        if ((state = d->api.reached(e)) != d->api.is.not_ready)
            return gpu_check(d, state, "writing to the others");
        nanosleep(&pause, NULL);
    }
    return hal_fail(HAL_E_DEVICE, "writing to the others did not end within %d ms", PROOF_MS);
}

static int write_proof(hal_group *g, uint32_t i) {
    hal_device *d = g->devices[i];
    gpu_launch l = {.grid = {.groups = {1, 1, 1}, .threads = GROUP_THREADS}};
    gpu_call call = {.arg = {[GROUP_ARG] = g->at[i]}};
    gpu_event done = NULL;
    int code = gpu_lock(d);
    if (code)
        return code;
    if (!(code = gpu_function_find(d, "prove_reach", &l.function)))
        code = gpu_check(d, d->api.event(&done, 2), "an event");
    if (!code)
        code = gpu_start(d, &l, &call, d->main);
    if (!code)
        code = gpu_check(d, d->api.record(done, d->main), "an event");
    if (!code)
        code = end_proof(d, done);
    if (done)
        d->api.end_event(done);
    gpu_unlock(d);
    return code;
}

/* Reads what the others wrote into the inbox of member i. */
static int read_proof(hal_group *g, uint32_t i) {
    hal_device *d = g->devices[i];
    uint32_t words[GROUP_PROVED];
    int code = gpu_lock(d);
    if (code)
        return code;
    for (uint32_t j = 0; j < g->members && !code; j++) {
        if (j == i)
            continue;
        code = gpu_check(d, d->api.read(words, group_place(g->on_device + i, i, j, 0), sizeof words, d->main),
                         "reading an inbox");
        if (!code)
            code = gpu_check(d, d->api.finish(d->main), "reading an inbox");
        for (uint32_t n = 0; n < GROUP_PROVED && !code; n++)
            if (words[n] != GROUP_PROOF(j, i, n))
                code = hal_fail(
                    HAL_E_UNSUPPORTED,
                    "device %d says that it can write the memory of device %d, but what it writes does not arrive: "
                    "give whole layers to each, -sm layer",
                    g->devices[j]->ordinal, d->ordinal);
    }
    gpu_unlock(d);
    return code;
}

/* Peer access is proved: each member writes into the others' inboxes, who read it there. */
static int prove(hal_group *g) {
    int code = 0;
    for (uint32_t i = 0; i < g->members && !code; i++)
        code = write_proof(g, i);
    for (uint32_t i = 0; i < g->members && !code; i++)
        code = read_proof(g, i);
    for (uint32_t i = 0; i < g->members && !code; i++)
        code = clear_inbox(g, i);
    return code;
}

/* Host memory for the word `broken`, and, a line of the cache apart, the faults. */
static int make_words(hal_group *g) {
    hal_device *d = g->devices[0];
    enum { LINE = 256 };
    uint8_t *all;
    int code = gpu_lock(d);
    if (code)
        return code;
    code = gpu_take_host(d, GPU_SEEN, LINE + HAL_MEMBERS * sizeof *g->faults, (void **)&all, "host memory for faults");
    gpu_unlock(d);
    if (code)
        return code;
    memset(all, 0, LINE + HAL_MEMBERS * sizeof *g->faults);
    g->broken = (uint32_t *)all;
    g->faults = (gpu_group_fault *)(all + LINE);
    return 0;
}

static void run_turn(void *of, uint32_t member) {
    hal_group *g = of;
    step *s = &g->now;
    s->codes[member] = gpu_run_member(s->execs[member], s->block, s->size, g->before);
    if (s->codes[member])
        snprintf(s->why[member], sizeof *s->why, "%s", hal_last_error());
}

static int make_group(hal_group *g, uint32_t timeout_ms) {
    int code = make_words(g);
    for (uint32_t i = 0; i < g->members && !code; i++)
        code = reach_others(g, i);
    for (uint32_t i = 0; i < g->members && !code; i++)
        code = make_member(g, i, timeout_ms);
    if (!code)
        code = grow_inboxes(g, PLACE);
    if (!code && g->members > 1)
        code = prove(g);
    if (!code && !(g->launchers = launchers_new(g->members, run_turn, g)))
        code = hal_fail(HAL_E_MEMORY, "no threads for a group");
    return code;
}

int gpu_join(hal_device *const *devices, uint32_t n, const hal_group_options *options, hal_group **out) {
    pthread_mutexattr_t again;
    hal_group *g;
    int code;
    if (n < 1 || n > HAL_MEMBERS)
        return hal_fail(HAL_E_INVALID, "a group has 1 to %d members, got %u", HAL_MEMBERS, n);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < i; j++)
            if (devices[i]->ordinal == devices[j]->ordinal)
                return hal_fail(HAL_E_INVALID, "members %u and %u of the group are one device", j, i);
    if (options->flags & HAL_GROUP_NO_PEER)
        return hal_fail(HAL_E_UNSUPPORTED,
                        "groups of GPUs do not meet in host memory: give whole layers to each, -sm layer");
    if (n > 1 && (!devices[0]->api.can_reach || !devices[0]->api.reach))
        return hal_fail(HAL_E_UNSUPPORTED, "the driver has no peer access: give whole layers to each, -sm layer");
    if (!(g = calloc(1, sizeof *g)))
        return hal_fail(HAL_E_MEMORY, "no memory for a group");
    pthread_mutexattr_init(&again);
    pthread_mutexattr_settype(&again, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&g->lock, &again);
    pthread_mutexattr_destroy(&again);
    g->members = n;
    g->missing = -1;
    g->link = HAL_LINK_NVLINK;
    g->exact = options->flags & HAL_GROUP_EXACT;
    g->timeout_ms = options->timeout_ms;
    memcpy(g->devices, devices, n * sizeof *devices);
    for (uint32_t i = 0; i < n; i++)
        devices[i]->together = &g->lock;
    if ((code = make_group(g, options->timeout_ms))) {
        gpu_part(g);
        return code;
    }
    *out = g;
    return 0;
}

void gpu_part(hal_group *g) {
    char why[256];
    if (!g)
        return;
    snprintf(why, sizeof why, "%s", hal_last_error()); /* of join(), which ends a group that it could not make */
    launchers_free(g->launchers);
    finish_all(g);
    for (uint32_t i = 0; i < g->members; i++) {
        hal_device *d = g->devices[i];
        if (!gpu_lock(d)) {
            const gpu_address all[] = {g->at[i], g->counts[i], g->inbox[i]};
            for (size_t n = 0; n < sizeof all / sizeof *all; n++)
                if (all[n])
                    d->api.free(all[n]);
            if (!i)
                gpu_give(d, (uint64_t)(uintptr_t)g->broken);
            gpu_unlock(d);
        }
        d->together = NULL;
    }
    pthread_mutex_destroy(&g->lock);
    free(g);
    hal_fail(0, "%s", why);
}

void gpu_group_info(hal_group *g, hal_group_info *out) {
    memset(out, 0, sizeof *out);
    lock_group(g);
    look_at_faults(g);
    out->members = g->members;
    out->missing = g->missing;
    out->link = g->link;
    out->meetings = g->meetings;
    for (uint32_t i = 0; i < g->members && g->missing < 0; i++) {
        gpu_group_counts counts;
        if (!read_counts(g, i, &counts))
            out->waited[i] = 1e-9 * (double)counts.waited_ns;
    }
    unlock_group(g);
}

/* --- plans */

static int columns_of(const gpu_call *c) {
    return c->v[0].shape[1];
}

/* The n-th collective of an exec. */
static const gpu_call *nth(const hal_exec *e, uint32_t n, const char **op) {
    for (int i = 0; i < e->n_calls; i++)
        if (gpu_is_collective(e->ops[i]) && e->calls[i].arg[GROUP_ARG_PLACE] == n + 1) {
            *op = e->ops[i];
            return e->calls + i;
        }
    return NULL;
}

static int check_collective(const hal_group *g, hal_exec *const *execs, uint32_t n) {
    const char *op = "", *other = "";
    const gpu_call *first = nth(execs[0], n, &op);
    const int gathers = !strcmp(op, "gather_columns");
    int64_t before = 0;
    for (uint32_t i = 0; i < g->members; i++) {
        const gpu_call *c = nth(execs[i], n, &other);
        arg_gather_columns place;
        memcpy(&place, c->arg, sizeof place);
        if (strcmp(op, other) || columns_of(c) != columns_of(first) || c->v[1].count != first->v[1].count ||
            c->v[1].shape[0] != first->v[1].shape[0] || (gathers && place.start != before))
            return hal_fail(HAL_E_INVALID,
                            "collective %u differs: member 0 has %s of step %u, member %u has %s of step %u", n, op,
                            first->step, i, other, c->step);
        before += c->v[1].shape[1];
    }
    if (gathers && before != columns_of(first))
        return hal_fail(HAL_E_INVALID, "collective %u: the members' columns are not its total", n);
    return 0;
}

/* Bytes of a place for a message of so many numbers at most: a word has four bfloat16, but two numbers otherwise. */
static uint64_t place_for(const gpu_group *g, int gathers, uint64_t numbers) {
    const uint64_t halves = g->bf16_least / sizeof(float); /* the most numbers of a sum that are float32 on the wire */
    if (gathers || numbers <= halves)
        return numbers * GROUP_WORD / 2;
    return numbers * GROUP_WORD / 4 > halves * GROUP_WORD / 2 ? numbers * GROUP_WORD / 4 : halves * GROUP_WORD / 2;
}

/* Compares the members' collectives. *place: the largest that they need. */
static int check_collectives(const hal_group *g, hal_exec *const *execs, uint64_t *place) {
    for (uint32_t i = 1; i < g->members; i++)
        if (execs[i]->n_meetings != execs[0]->n_meetings)
            return hal_fail(HAL_E_INVALID, "member %u has %u collectives, member 0 has %u", i, execs[i]->n_meetings,
                            execs[0]->n_meetings);
    for (uint32_t n = 0; n < execs[0]->n_meetings; n++) {
        const char *op = "";
        const gpu_call *c = nth(execs[0], n, &op);
        uint64_t bytes = place_for(g->on_device, !strcmp(op, "gather_columns"),
                                   (uint64_t)c->v[0].shape[0] * (uint64_t)columns_of(c));
        int code = check_collective(g, execs, n);
        if (code)
            return code;
        *place = bytes > *place ? bytes : *place;
    }
    return 0;
}

static int compile_locked(hal_group *g, const hal_plan *const *plans, hal_buffer *const *const *buffers,
                          hal_exec **execs) {
    uint64_t place = 0;
    char why[256];
    int code;
    for (uint32_t i = 0; i < g->members; i++) {
        const gpu_member member = {g, i, g->at[i], fault_of};
        if ((code = gpu_compile_member(g->devices[i], plans[i], buffers[i], &member, execs + i))) {
            snprintf(why, sizeof why, "%s", hal_last_error());
            return hal_fail(code, "member %u: %s", i, why);
        }
    }
    if ((code = check_collectives(g, execs, &place)))
        return code;
    return grow_inboxes(g, (place + 255) & ~(uint64_t)255);
}

int gpu_compile_group(hal_group *g, const hal_plan *const *plans, hal_buffer *const *const *buffers, hal_exec **execs) {
    char why[256];
    int code;
    memset(execs, 0, g->members * sizeof *execs);
    lock_group(g);
    if ((code = compile_locked(g, plans, buffers, execs))) {
        snprintf(why, sizeof why, "%s", hal_last_error());
        for (uint32_t i = 0; i < g->members; i++) {
            gpu_release(execs[i]);
            execs[i] = NULL;
        }
        hal_fail(code, "%s", why);
    }
    unlock_group(g);
    return code;
}

/* --- steps */

static int run_locked(hal_group *g, hal_exec *const *execs, const void *block, uint64_t size) {
    char why[256];
    int code = 0;
    if (g->before > RESTART && (code = restart(g)))
        return code;
    g->now = (step){.execs = execs, .block = block, .size = size};
    launch_all(g->launchers);
    g->before += execs[0]->n_meetings;
    g->meetings += execs[0]->n_meetings;
    for (uint32_t i = 0; i < g->members; i++)
        if (g->now.codes[i] && !code) {
            code = g->now.codes[i];
            snprintf(why, sizeof why, "member %u: %.200s", i, g->now.why[i]);
            break_group(g, i, why);
        }
    return code ? hal_fail(HAL_E_LOST, "%s", g->why) : 0;
}

int gpu_run_group(hal_group *g, hal_exec *const *execs, const void *block, uint64_t size) {
    int code = 0;
    for (uint32_t i = 0; i < g->members; i++)
        if ((code = gpu_check_block(execs[i], block, size)))
            return code;
    lock_group(g);
    look_at_faults(g);
    code = g->missing >= 0 ? hal_fail(HAL_E_LOST, "%s", g->why) : run_locked(g, execs, block, size);
    unlock_group(g);
    return code;
}
