/* group.c: groups of GPUs (tensor parallelism). Each member has an inbox in its memory, which the kernels of the others' collectives
 * write (group_call.h); here inboxes are made, plans are compared, and a step is started on all members.
 *
 * The group's lock comes before the locks of its devices. Whatever may wait for a device (memory, transfers, compile) takes it too,
 * so it never comes between the starts of one step on two members: a member whose run has begun waits for the others', and a driver
 * that waits for that member may let no other begin. What has begun on all ends by itself, within the timeout.
 *
 * A group breaks when a kernel gives up or a device fails. The word `broken` of the host's memory tells all kernels, which leave. It
 * stays broken.
 *
 * Where NCCL is installed, it adds up messages of a size at which it is faster, as measured when the first plan with such a message is
 * compiled. It has no deadline: a thread watches how far the members' streams are, and aborts it.
 */
#include "group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "launchers.h"
#include "nccl.h"

enum { ATOMICS = 3 /* CUDA: attribute of a pair of devices, which NVLink has and PCIe has not */ };
enum { KB = 1 << 10, ALREADY = 704 /* CUDA: peer access is enabled */, NS_PER_MS = 1000000, POLL_NS = 100000 };
enum { PLACE = 16 * KB /* bytes of a place at first */, PROOF_MS = 10000, RESTART = 1 << 30 };

/* Sizes of messages for which the faster way is kept: of LIBRARY_LEAST bytes and more, of twice as many, ... */
enum { LIBRARY_LEAST = 4 << 20, SIZES = 8, UNKNOWN = 0, OWN, LIBRARY };
enum { TRIALS = 3, REPEATS = 8, TRIAL_WIDTH = 4096, TRIAL_HEAD = 256, WATCH_NS = 10 * NS_PER_MS };

/* What each launcher does for its member. */
typedef struct {
    int (*work)(hal_group *, uint32_t member);
    hal_exec *const *execs; /* of a run */
    const void *block;
    uint64_t size;
    int codes[HAL_MEMBERS];
    char why[HAL_MEMBERS][256];
} step;

/* Sums of one size, to be timed. */
typedef struct {
    uint64_t bytes;
    int by_library;
    gpu_address at[HAL_MEMBERS]; /* a step block, then the rows */
} trial;

/* What places must have: bytes of one of words; numbers of the longest message by parts, 0: there is none. */
typedef struct {
    uint64_t words, parts;
} room;

struct hal_group {
    pthread_mutex_t lock;
    hal_device *devices[HAL_MEMBERS];
    uint32_t members, timeout_ms;
    int exact;                        /* sums travel as float32 */
    int push;                         /* products begin the sums of their results */
    gpu_group on_device[HAL_MEMBERS]; /* as the members have them */
    gpu_address at[HAL_MEMBERS], counts[HAL_MEMBERS], inbox[HAL_MEMBERS], parts[HAL_MEMBERS];
    room room;               /* of the inboxes */
    uint32_t *broken;        /* pinned, of the first member, seen by all */
    gpu_group_fault *faults; /* likewise, one a member */
    uint32_t before;         /* collectives since the inboxes were cleared */
    uint64_t meetings;
    launchers *launchers;
    step now;
    uint32_t link; /* HAL_LINK_ of the slowest pair */
    /* A vendor's library. */
    nccl_group *nccl;             /* NULL: not needed yet, or `no_library` */
    int no_library;               /* 1: there is none, or it failed */
    char *path;                   /* of the library; NULL: not found by the caller */
    uint64_t asked_least;         /* bytes from which the user asks for it; UINT64_MAX: what is measured decides */
    int ways[SIZES];              /* OWN, LIBRARY */
    uint64_t rounded;             /* bytes of gpu_group.rounded */
    gpu_group_progress *progress; /* pinned, one a member */
    trial trial;
    pthread_t watcher;
    int watched;
    atomic_int unwatched;
    int missing; /* -1: the group is whole */
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

/* The member that came to the fewest sums by the library. */
static uint32_t least_begun(const hal_group *g) {
    const volatile gpu_group_progress *at = g->progress;
    uint32_t found = 0;
    for (uint32_t i = 1; i < g->members; i++)
        found = at[i].began < at[found].began ? i : found;
    return found;
}

static const char *collective_of(uint32_t op) {
    static const char *const names[] = {[GROUP_REDUCE] = "reduce_add",
                                        [GROUP_GATHER] = "gather_columns",
                                        [GROUP_SCATTER] = "reduce_scatter",
                                        [GROUP_ALL_GATHER] = "all_gather"};
    return op < sizeof names / sizeof *names ? names[op] : "a collective";
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
    if (!first && g->nccl && nccl_fault(g->nccl)) {
        snprintf(why, sizeof why, "%s", hal_last_error());
        break_group(g, least_begun(g), why);
    }
    if (!first)
        return;
    missing = first->missing == GROUP_SOMEONE ? least_number(g) : first->missing;
    snprintf(why, sizeof why, "member %u did not come to %s of step %u within %u ms", missing, collective_of(first->op),
             first->step - 1, g->timeout_ms);
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
    const gpu_group *own = g->on_device + i;
    int code = gpu_lock(d);
    if (code)
        return code;
    code = gpu_check(d, d->api.fill(g->inbox[i], 0, inbox_bytes(g, own->place), d->main), "clearing an inbox");
    if (!code && g->parts[i])
        code =
            gpu_check(d, d->api.fill(g->parts[i], 0, inbox_bytes(g, own->parts_place), d->main), "clearing an inbox");
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

/* Frees inboxes, and makes others whose places have so many bytes. */
static int replace_boxes(hal_group *g, gpu_address *boxes, uint64_t place) {
    int code = 0;
    for (uint32_t i = 0; i < g->members && !code; i++) {
        hal_device *d = g->devices[i];
        if ((code = gpu_lock(d)))
            break;
        if (boxes[i])
            d->api.free(boxes[i]);
        boxes[i] = 0;
        if (place)
            code = gpu_check(d, d->api.alloc(&boxes[i], inbox_bytes(g, place)), "memory for an inbox");
        gpu_unlock(d);
    }
    return code;
}

static uint64_t rounded_up(uint64_t bytes) {
    return (bytes + 255) & ~(uint64_t)255;
}

/* A tile that a product pushed has more flags than a part. */
static uint64_t flags_for(uint64_t numbers) {
    enum { PIECE = 16 * 128 /* numbers of a flag at least */ };
    return rounded_up(sizeof(uint32_t) * ((numbers + PIECE - 1) / PIECE));
}

/* Gives all members inboxes with so much room. No step is under way after it; plans that were compiled before go on if they need no
 * more. */
static int set_inboxes(hal_group *g, room r) {
    const uint64_t words = rounded_up(r.words), flags = flags_for(r.parts),
                   parts = r.parts ? flags + rounded_up(2 * r.parts) : 0;
    int code = finish_all(g);
    if (code)
        return code;
    if (words != g->on_device[0].place)
        code = replace_boxes(g, g->inbox, words);
    if (!code && parts != g->on_device[0].parts_place)
        code = replace_boxes(g, g->parts, parts);
    for (uint32_t i = 0; i < g->members; i++) {
        gpu_group *own = g->on_device + i;
        own->place = code ? 0 : words;
        own->parts_place = code ? 0 : parts;
        own->parts_flags = flags;
        memcpy(own->inbox, g->inbox, sizeof own->inbox);
        memcpy(own->parts, g->parts, sizeof own->parts);
    }
    g->room = r;
    for (uint32_t i = 0; i < g->members && !code; i++)
        if (!(code = send_group(g, i)))
            code = clear_inbox(g, i);
    if (code)
        break_group(g, 0, hal_last_error()); /* plans that were compiled before have no inboxes */
    return code;
}

static int grow_inboxes(hal_group *g, room r) {
    const room most = {r.words > g->room.words ? r.words : g->room.words,
                       r.parts > g->room.parts ? r.parts : g->room.parts};
    return most.words == g->room.words && most.parts == g->room.parts ? 0 : set_inboxes(g, most);
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
    g->parts_least = exact ? UINT64_MAX : (uint64_t)(2048 * KB + many);
    g->parts_two_least = many ? 0 : UINT64_MAX;
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
    own->progress = (uint64_t)(uintptr_t)(g->progress + i);
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

/* Host memory for the word `broken`, and, a line of the cache apart, what each member writes. */
static int make_words(hal_group *g) {
    hal_device *d = g->devices[0];
    enum { LINE = 256, SIZE = LINE + HAL_MEMBERS * (sizeof *g->faults + sizeof *g->progress) };
    uint8_t *all;
    int code = gpu_lock(d);
    if (code)
        return code;
    code = gpu_take_host(d, GPU_SEEN, SIZE, (void **)&all, "host memory for faults");
    gpu_unlock(d);
    if (code)
        return code;
    memset(all, 0, SIZE);
    g->broken = (uint32_t *)all;
    g->faults = (gpu_group_fault *)(all + LINE);
    g->progress = (gpu_group_progress *)(g->faults + HAL_MEMBERS);
    return 0;
}

static void run_turn(void *of, uint32_t member) {
    hal_group *g = of;
    step *s = &g->now;
    s->codes[member] = s->work(g, member);
    if (s->codes[member])
        snprintf(s->why[member], sizeof *s->why, "%s", hal_last_error());
}

/* Does some work for all members at once, each on the thread of its launcher. Gives the first failure, which is the last error's text
 * with its member. */
static int on_all(hal_group *g, int (*work)(hal_group *, uint32_t), uint32_t *failed) {
    g->now.work = work;
    launch_all(g->launchers);
    for (uint32_t i = 0; i < g->members; i++)
        if (g->now.codes[i]) {
            *failed = i;
            return hal_fail(g->now.codes[i], "member %u: %.200s", i, g->now.why[i]);
        }
    return 0;
}

/* Room for a message of so many numbers at most: a word has four bfloat16, but two numbers otherwise. */
static room room_for(const gpu_group *g, int gathers, uint64_t numbers) {
    const uint64_t halves = g->bf16_least / sizeof(float); /* the most numbers of a sum that are float32 on the wire */
    const uint64_t few = g->parts_least / sizeof(float);   /* the most that go by words */
    const uint64_t worded = numbers < few ? numbers : few;
    const int by_parts = !gathers && numbers >= few;
    room r = {numbers * GROUP_WORD / 2, by_parts ? numbers : 0};
    if (gathers || numbers <= halves)
        return r;
    r.words = worded * GROUP_WORD / 4 > halves * GROUP_WORD / 2 ? worded * GROUP_WORD / 4 : halves * GROUP_WORD / 2;
    return r;
}

/* --- sums by a vendor's library */

static void set_library(hal_group *g, const hal_group_options *options) {
    const char *asked = getenv("SATCHEL_NCCL_LEAST");
    g->path = options->library ? strdup(options->library) : NULL;
    g->asked_least = asked && *asked ? strtoull(asked, NULL, 10) : UINT64_MAX;
}

/* Which of the sizes; -1: below all. */
static int size_of(uint64_t bytes) {
    int found = -1;
    for (uint64_t least = LIBRARY_LEAST; bytes >= least && found + 1 < SIZES; least *= 2)
        found++;
    return found;
}

static int by_library(const hal_group *g, uint64_t bytes) {
    const int size = size_of(bytes);
    if (!g->nccl || g->no_library || bytes > 2 * g->rounded)
        return 0;
    return g->asked_least != UINT64_MAX ? bytes >= g->asked_least : size >= 0 && g->ways[size] == LIBRARY;
}

static int uses_library(const hal_group *g) {
    int used = g->nccl && !g->no_library && g->asked_least != UINT64_MAX;
    for (int i = 0; i < SIZES; i++)
        used |= g->nccl && !g->no_library && g->ways[i] == LIBRARY;
    return used;
}

static int sum_of(hal_group *g, uint32_t i, uint64_t numbers, gpu_stream stream) {
    const uint64_t at = g->on_device[i].rounded;
    return nccl_all_reduce(g->nccl, i, at, at, numbers, NCCL_BF16, stream);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 * NS_PER_MS + (uint64_t)t.tv_nsec;
}

/* A member's sum did not end in time: tells it as a kernel that gave up does. */
static void tell_late(hal_group *g, uint32_t i) {
    const volatile gpu_group_progress *at = g->progress;
    const uint32_t least = least_begun(g);
    g->faults[i] = (gpu_group_fault){.step = at[i].step,
                                     .number = at[i].began,
                                     .missing = at[least].began < at[i].began ? least : i,
                                     .op = GROUP_REDUCE};
    atomic_thread_fence(memory_order_seq_cst);
    *(volatile uint32_t *)g->broken = 1;
}

/* The thread that gives the library's sums their deadline. It takes no lock: a thread that waits for a device may have the group's. */
static void *watch(void *of) {
    hal_group *g = of;
    const struct timespec pause = {0, WATCH_NS};
    uint32_t seen[HAL_MEMBERS] = {0};
    uint64_t since[HAL_MEMBERS] = {0};
    while (!atomic_load(&g->unwatched)) {
        nanosleep(&pause, NULL);
        for (uint32_t i = 0; i < g->members; i++) {
            const volatile gpu_group_progress *at = g->progress + i;
            const uint32_t began = at->began;
            if (began != seen[i] || at->ended == began) {
                seen[i] = began;
                since[i] = now_ns();
            } else if (now_ns() - since[i] > (uint64_t)g->timeout_ms * NS_PER_MS && !*(volatile uint32_t *)g->broken)
                tell_late(g, i);
        }
        if (!*(volatile uint32_t *)g->broken && nccl_fault(g->nccl))
            *(volatile uint32_t *)g->broken = 1;
        if (*(volatile uint32_t *)g->broken)
            nccl_abort(g->nccl, "the group is broken");
    }
    return NULL;
}

static int join_library(hal_group *g, uint32_t i) {
    int code = gpu_lock_alone(g->devices[i]);
    if (code)
        return code;
    code = nccl_join(g->nccl, i);
    gpu_unlock_alone(g->devices[i]);
    return code;
}

static int leave_library(hal_group *g, uint32_t i) {
    int code = gpu_lock_alone(g->devices[i]);
    if (code)
        return code;
    nccl_leave(g->nccl, i);
    gpu_unlock_alone(g->devices[i]);
    return 0;
}

/* No member's stream has work. */
static void end_library(hal_group *g) {
    uint32_t failed;
    if (!g->nccl)
        return;
    if (g->missing >= 0 || *(volatile uint32_t *)g->broken)
        nccl_abort(g->nccl, "the group is broken");
    on_all(g, leave_library, &failed);
    atomic_store(&g->unwatched, 1);
    if (g->watched)
        pthread_join(g->watcher, NULL);
    g->watched = 0;
    nccl_part(g->nccl);
    g->nccl = NULL;
}

static int open_library(hal_group *g) {
    uint32_t failed;
    int code = nccl_prepare(g->members, g->timeout_ms, g->path, &g->nccl);
    if (code)
        return code;
    if (!(code = on_all(g, join_library, &failed)))
        code = pthread_create(&g->watcher, NULL, watch, g) ? hal_fail(HAL_E_MEMORY, "no thread to watch NCCL") : 0;
    g->watched = !code;
    return code;
}

/* Room for the members' rounded parts of a message of so many bytes. */
static int grow_rounded(hal_group *g, uint64_t bytes) {
    int code = 0;
    if (bytes <= 2 * g->rounded || (code = finish_all(g)))
        return code;
    for (uint32_t i = 0; i < g->members && !code; i++) {
        hal_device *d = g->devices[i];
        if ((code = gpu_lock(d)))
            break;
        if (g->on_device[i].rounded)
            d->api.free(g->on_device[i].rounded);
        g->on_device[i].rounded = 0;
        code = gpu_check(d, d->api.alloc(&g->on_device[i].rounded, bytes / 2), "memory for a library's sums");
        gpu_unlock(d);
    }
    for (uint32_t i = 0; i < g->members && !code; i++)
        code = send_group(g, i);
    g->rounded = code ? 0 : bytes / 2;
    return code;
}

/* REPEATS sums, one behind the other. The lock is held. */
static int start_trial(hal_group *g, uint32_t i) {
    hal_device *d = g->devices[i];
    const gpu_address at = g->trial.at[i];
    const gpu_view rows = {at + TRIAL_HEAD,
                           sizeof(float) * TRIAL_WIDTH,
                           {(int32_t)(g->trial.bytes / sizeof(float) / TRIAL_WIDTH), TRIAL_WIDTH, 1, 1},
                           -1,
                           0};
    const int32_t counts[HAL_COUNTS] = {[GROUP_COUNT] = (int32_t)g->before};
    gpu_call c = {.counts = at, .n_in = 2, .arg = {[GROUP_ARG] = g->at[i]}, .v = {rows, rows, rows}};
    gpu_launch l[3] = {{.grid = {.groups = {2 * (uint32_t)d->traits.units, 1, 1}, .threads = GROUP_THREADS}}};
    int code = gpu_check(d, d->api.write(at, counts, sizeof counts, d->main), "timing sums");
    if (!code)
        code = gpu_check(d, d->api.finish(d->main), "timing sums");
    if (!code)
        code = g->trial.by_library ? gpu_library_launches(d, &c, 0, l)
                                   : gpu_function_find(d, "reduce_rows", &l[0].function);
    for (uint64_t n = 1; n <= REPEATS && !code; n++) {
        c.arg[GROUP_ARG_PLACE] = n;
        code = gpu_start(d, l, &c, d->main);
        if (!code && g->trial.by_library)
            code = sum_of(g, i, g->trial.bytes / sizeof(float), d->main);
        if (!code && g->trial.by_library)
            code = gpu_start(d, l + 2, &c, d->main);
    }
    return code ? code : gpu_check(d, d->api.finish(d->main), "timing sums");
}

static int run_trial(hal_group *g, uint32_t i) {
    int code = gpu_lock_alone(g->devices[i]);
    if (code)
        return code;
    code = start_trial(g, i);
    gpu_unlock_alone(g->devices[i]);
    return code;
}

/* The least nanoseconds of several trials, behind one that is not counted. */
static int time_way(hal_group *g, int library, uint64_t *least) {
    int code = 0;
    g->trial.by_library = library;
    *least = UINT64_MAX;
    for (int n = -1; n < TRIALS && !code; n++) {
        const uint64_t began = now_ns();
        uint32_t failed;
        code = on_all(g, run_trial, &failed);
        g->before += REPEATS;
        if (n >= 0 && now_ns() - began < *least)
            *least = now_ns() - began;
    }
    return code;
}

static int make_trial(hal_group *g, uint64_t bytes) {
    int code = 0;
    g->trial = (trial){.bytes = bytes / sizeof(float) / TRIAL_WIDTH * TRIAL_WIDTH * sizeof(float)};
    for (uint32_t i = 0; i < g->members && !code; i++) {
        hal_device *d = g->devices[i];
        if ((code = gpu_lock(d)))
            break;
        code = gpu_check(d, d->api.alloc(&g->trial.at[i], TRIAL_HEAD + bytes), "memory for timing sums");
        if (!code)
            code = gpu_check(d, d->api.fill(g->trial.at[i], 0, TRIAL_HEAD + bytes, d->main), "timing sums");
        gpu_unlock(d);
    }
    return code;
}

static void end_trial(hal_group *g) {
    for (uint32_t i = 0; i < g->members; i++)
        if (g->trial.at[i] && !gpu_lock(g->devices[i])) {
            g->devices[i]->api.free(g->trial.at[i]);
            gpu_unlock(g->devices[i]);
        }
}

/* Times both ways for a message. Inboxes keep the size that they had: plans whose sums go the group's own way make them larger. */
static int time_both(hal_group *g, uint64_t bytes, int *way) {
    const room before = g->room;
    uint64_t own = 0, library = 0;
    int code = make_trial(g, bytes);
    if (!code)
        code = grow_inboxes(g, room_for(g->on_device, 0, bytes / sizeof(float)));
    if (!code)
        code = time_way(g, 0, &own);
    if (!code)
        code = time_way(g, 1, &library);
    end_trial(g);
    *way = !code && library < own ? LIBRARY : OWN;
    if (*way == LIBRARY)
        code = set_inboxes(g, before);
    return code;
}

/* Finds which way sums of a plan's largest size go, where that is not known. A library that cannot be used, or a lack of memory for
 * it, is no error: the group's own way is left. */
static int choose_way(hal_group *g, uint64_t bytes) {
    const int size = size_of(bytes), asked = g->asked_least != UINT64_MAX;
    if (g->no_library || g->missing >= 0 || (asked ? bytes < g->asked_least : size < 0))
        return 0;
    if ((!g->nccl && open_library(g)) || grow_rounded(g, bytes) ||
        (!asked && g->ways[size] == UNKNOWN && time_both(g, bytes, g->ways + size))) {
        char why[256];
        snprintf(why, sizeof why, "%s", hal_last_error());
        look_at_faults(g);
        g->no_library = 1; /* its communicators stay until part(): plans may have been compiled with it */
        return *(volatile uint32_t *)g->broken ? hal_fail(HAL_E_LOST, "%s", g->missing >= 0 ? g->why : why) : 0;
    }
    return 0;
}

/* --- making a group */

/* Whether products begin the sums of their results: if the user asks for it. On two H200s it was not faster (docs/parallel.md). */
static int pushes(const hal_group *g) {
    const char *asked = getenv("SATCHEL_GROUP_PUSH");
    if (g->members < 2 || g->exact || !asked || strcmp(asked, "1") != 0)
        return 0;
    for (uint32_t i = 0; i < g->members; i++)
        if (g->devices[i]->traits.flags & HAL_DETERMINISTIC)
            return 0;
    return 1;
}

static int make_group(hal_group *g, uint32_t timeout_ms) {
    int code = make_words(g);
    for (uint32_t i = 0; i < g->members && !code; i++)
        code = reach_others(g, i);
    for (uint32_t i = 0; i < g->members && !code; i++)
        code = make_member(g, i, timeout_ms);
    if (!code)
        code = grow_inboxes(g, (room){PLACE, 0});
    if (!code && g->members > 1)
        code = prove(g);
    g->push = pushes(g);
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
    set_library(g, options);
    g->timeout_ms = options->timeout_ms;
    memcpy(g->devices, devices, n * sizeof *devices);
    for (uint32_t i = 0; i < n; i++)
        devices[i]->together = &g->lock;
    for (uint32_t i = 0; i < n; i++)
        g->no_library |= n < 2 || g->exact || devices[i]->traits.flags & HAL_DETERMINISTIC;
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
    finish_all(g);
    end_library(g);
    launchers_free(g->launchers);
    for (uint32_t i = 0; i < g->members; i++) {
        hal_device *d = g->devices[i];
        if (!gpu_lock(d)) {
            const gpu_address all[] = {g->at[i], g->counts[i], g->inbox[i], g->parts[i], g->on_device[i].rounded};
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
    free(g->path);
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
    if (uses_library(g))
        snprintf(out->library, sizeof out->library, "%s", nccl_name(g->nccl));
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

/* Arguments of a collective that divides rows: the group's members, and whether rows may be rounded on the wire. */
static int32_t ranks_of(const char *op, const gpu_call *c) {
    arg_norm_all_gather normed;
    arg_all_gather plain; /* reduce_scatter's begin alike */
    memcpy(&normed, c->arg, sizeof normed);
    memcpy(&plain, c->arg, sizeof plain);
    return strcmp(op, "norm_all_gather") ? plain.ranks : normed.ranks;
}

static int rounds_of(const char *op, const gpu_call *c) {
    arg_norm_all_gather normed;
    arg_all_gather plain;
    memcpy(&normed, c->arg, sizeof normed);
    memcpy(&plain, c->arg, sizeof plain);
    return !strcmp(op, "reduce_scatter") || (strcmp(op, "norm_all_gather") ? plain.rounds : normed.rounds);
}

static int check_collective(const hal_group *g, hal_exec *const *execs, uint32_t n) {
    const char *op = "", *other = "";
    const gpu_call *first = nth(execs[0], n, &op);
    const int gathers = !strcmp(op, "gather_columns");
    int64_t before = 0;
    if (!first)
        return hal_fail(HAL_E_INVALID, "member 0 has no collective %u", n);
    for (uint32_t i = 0; i < g->members; i++) {
        const gpu_call *c = nth(execs[i], n, &other);
        arg_gather_columns place;
        if (!c)
            return hal_fail(HAL_E_INVALID, "member %u has no collective %u", i, n);
        memcpy(&place, c->arg, sizeof place);
        if (strcmp(op, other) || columns_of(c) != columns_of(first) || c->v[1].count != first->v[1].count ||
            c->v[1].shape[0] != first->v[1].shape[0] || c->v[0].shape[0] != first->v[0].shape[0] ||
            (gathers && place.start != before) || (gpu_divides_rows(op) && ranks_of(op, c) != ranks_of(op, first)))
            return hal_fail(HAL_E_INVALID,
                            "collective %u differs: member 0 has %s of step %u, member %u has %s of step %u", n, op,
                            first->step, i, other, c->step);
        before += c->v[1].shape[1];
    }
    if (gathers && before != columns_of(first))
        return hal_fail(HAL_E_INVALID, "collective %u: the members' columns are not its total", n);
    if (gpu_divides_rows(op) && ranks_of(op, first) != (int32_t)g->members)
        return hal_fail(HAL_E_INVALID, "collective %u: %s is of %d members, the group has %u", n, op,
                        ranks_of(op, first), g->members);
    return 0;
}

/* Room for rows that are divided: of the member that has the most. float32 takes that of two bfloat16. */
static room room_for_rows(const hal_group *g, const char *op, const gpu_call *c) {
    const int exact = g->on_device[0].parts_least == UINT64_MAX;
    const gpu_view *own = strcmp(op, "reduce_scatter") ? c->v + 1 : c->v;
    const uint64_t numbers = (uint64_t)own->shape[0] * (uint64_t)own->shape[1];
    return (room){0, exact || !rounds_of(op, c) ? 2 * numbers : numbers};
}

/* Numbers of a sum in whole tiles. */
static uint64_t tiled_numbers(const gpu_call *c) {
    enum { ROWS = 128, COLUMNS = 256 };
    const uint64_t down = ((uint64_t)c->v[0].shape[0] + ROWS - 1) / ROWS,
                   across = ((uint64_t)c->v[0].shape[1] + COLUMNS - 1) / COLUMNS;
    return down * across * ROWS * COLUMNS;
}

/* Whether products begin the sums of all members' plans alike, with tiles of one shape. */
static int push_alike(const hal_group *g, hal_exec *const *execs) {
    const char *op = "";
    for (uint32_t n = 0; n < execs[0]->n_meetings; n++)
        for (uint32_t i = 1; i < g->members; i++) {
            const gpu_call *first = nth(execs[0], n, &op), *other = nth(execs[i], n, &op);
            if (first && other && gpu_pushed(first) != gpu_pushed(other))
                return 0;
        }
    return 1;
}

/* Room for this member's own tiles, as it pushes them. */
static int make_room_for_tiles(hal_group *g, const hal_exec *e) {
    const char *op = "";
    int code = 0;
    for (uint32_t n = 0; n < e->n_meetings && !code; n++) {
        const gpu_call *c = nth(e, n, &op);
        if (strcmp(op, "gather_columns") && gpu_pushed(c))
            code = grow_rounded(g, sizeof(float) * tiled_numbers(c));
    }
    return code;
}

/* Compares the members' collectives. *most: the room that they need. */
static int check_collectives(const hal_group *g, hal_exec *const *execs, room *most) {
    for (uint32_t i = 1; i < g->members; i++)
        if (execs[i]->n_meetings != execs[0]->n_meetings)
            return hal_fail(HAL_E_INVALID, "member %u has %u collectives, member 0 has %u", i, execs[i]->n_meetings,
                            execs[0]->n_meetings);
    for (uint32_t n = 0; n < execs[0]->n_meetings; n++) {
        const char *op = "";
        const gpu_call *c = nth(execs[0], n, &op);
        int code = check_collective(g, execs, n);
        if (code || !c) /* which check_collective has refused */
            return code;
        const int gathers = !strcmp(op, "gather_columns");
        const room r = gpu_divides_rows(op)
                           ? room_for_rows(g, op, c)
                           : room_for(g->on_device, gathers, (uint64_t)c->v[0].shape[0] * (uint64_t)columns_of(c));
        const int sums = !strcmp(op, "reduce_add");
        if (sums && !gpu_pushed(c) && by_library(g, gpu_sum_bytes(c)))
            continue;
        if (sums && gpu_pushed(c)) {
            const uint64_t numbers = tiled_numbers(c);
            most->parts = numbers > most->parts ? numbers : most->parts;
            continue;
        }
        most->words = r.words > most->words ? r.words : most->words;
        most->parts = r.parts > most->parts ? r.parts : most->parts;
    }
    return 0;
}

static void release_all(const hal_group *g, hal_exec **execs) {
    for (uint32_t i = 0; i < g->members; i++) {
        gpu_release(execs[i]);
        execs[i] = NULL;
    }
}

static int compile_members(hal_group *g, const hal_plan *const *plans, hal_buffer *const *const *buffers,
                           hal_exec **execs, int push) {
    char why[256];
    for (uint32_t i = 0; i < g->members; i++) {
        const gpu_member member = {g, i, g->members, g->at[i], fault_of, sum_of, by_library, push};
        const int code = gpu_compile_member(g->devices[i], plans[i], buffers[i], &member, execs + i);
        if (code) {
            snprintf(why, sizeof why, "%s", hal_last_error());
            return hal_fail(code, "member %u: %s", i, why);
        }
    }
    return 0;
}

static int compile_locked(hal_group *g, const hal_plan *const *plans, hal_buffer *const *const *buffers,
                          hal_exec **execs) {
    room most = {0, 0};
    uint64_t sum = 0;
    int code;
    if (!g->push && !gpu_largest_sum(g->devices[0], plans[0], &sum) && (code = choose_way(g, sum)))
        return code;
    code = compile_members(g, plans, buffers, execs, g->push);
    if (!code && g->push && !push_alike(g, execs)) {
        release_all(g, execs);
        code = compile_members(g, plans, buffers, execs, 0);
    }
    if (code || (code = check_collectives(g, execs, &most)) || (code = make_room_for_tiles(g, execs[0])))
        return code;
    return grow_inboxes(g, most);
}

int gpu_compile_group(hal_group *g, const hal_plan *const *plans, hal_buffer *const *const *buffers, hal_exec **execs) {
    char why[256];
    int code;
    memset(execs, 0, g->members * sizeof *execs);
    lock_group(g);
    if ((code = compile_locked(g, plans, buffers, execs))) {
        snprintf(why, sizeof why, "%s", hal_last_error());
        release_all(g, execs);
        hal_fail(code, "%s", why);
    }
    unlock_group(g);
    return code;
}

/* --- steps */

static int start_step(hal_group *g, uint32_t i) {
    return gpu_run_member(g->now.execs[i], g->now.block, g->now.size, g->before);
}

static int run_locked(hal_group *g, hal_exec *const *execs, const void *block, uint64_t size) {
    char why[256];
    uint32_t failed;
    int code = 0;
    if (g->before > RESTART && (code = restart(g)))
        return code;
    g->now = (step){.execs = execs, .block = block, .size = size};
    code = on_all(g, start_step, &failed);
    g->before += execs[0]->n_meetings;
    g->meetings += execs[0]->n_meetings;
    if (!code)
        return 0;
    snprintf(why, sizeof why, "%s", hal_last_error());
    break_group(g, failed, why);
    return hal_fail(HAL_E_LOST, "%s", g->why);
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
