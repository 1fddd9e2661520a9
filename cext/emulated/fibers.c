/* fibers.c: runs a kernel's groups one after the other on one CPU thread. Each thread of a group is a fiber with a stack of
 * its own; it runs until it waits at a barrier or a wave exchange, and continues when all have arrived. A seed determines the
 * order of groups, waves and threads, and how far a wave runs ahead of others: to its next exchange, or to the barrier. So
 * trying seeds finds a missing barrier. Local memory is poisoned for each group and has a guard border after it. A thread that
 * waits for one that has ended is an error.
 *
 * Stacks, local memory and the current group are static and reused; launches do not overlap.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fibers.h"

enum { THREADS = 1024, STACK = 1 << 17, LOCAL_MOST = 1 << 18, BORDER = 256, POISON = 0xFF };

typedef enum { READY, AT_BARRIER, AT_TAKE, ENDED } state;

typedef struct {
    void *at; /* stack pointer while the fiber is suspended */
    state is;
    int wants;          /* the lane that it reads */
    uint32_t posted[2]; /* its posted values, alternating: a lane may be one exchange ahead of a reader */
    unsigned takes;
    self m;
} fiber;

static struct {
    const emulated_kernel *kernel;
    const gpu_call *call;
    fiber fibers[THREADS];
    int order[THREADS], waves[THREADS], n, now; /* order: of threads, permuted within each wave */
    void *host;                                 /* stack pointer of the caller that runs the group */
    uint64_t random;
    uint8_t *stacks, *local;
    char why[256];
} group;

static emulated_kernel *kernels;
static emulated_site *sites; /* barriers that were reached */
static char left_out[64];    /* name of the disabled barrier; empty: none */

void emulated_tell(emulated_kernel *k) {
    k->next = kernels;
    kernels = k;
}

const emulated_kernel *emulated_find(const char *name) {
    const emulated_kernel *k = kernels;
    while (k && strcmp(k->name, name) != 0)
        k = k->next;
    return k;
}

/* --- stack switch: saves callee-saved registers on the old stack and restores them from the new one */

void emulated_switch(void **from, void *to);

#if defined(__x86_64__)
enum { KEPT = 6 };
__asm__(".text\n.hidden emulated_switch\n.globl emulated_switch\n.type emulated_switch,@function\n"
        "emulated_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size emulated_switch,.-emulated_switch\n");
enum { ENTRY = KEPT, WORDS = KEPT + 2 };
#elif defined(__aarch64__)
__asm__(
    ".text\n.hidden emulated_switch\n.globl emulated_switch\n.type emulated_switch,@function\n"
    "emulated_switch:\n"
    "sub sp,sp,#160\n"
    "stp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\nstp x27,x28,[sp,#64]\n"
    "stp x29,x30,[sp,#80]\nstp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
    "mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\nldp x27,x28,[sp,#64]\n"
    "ldp x29,x30,[sp,#80]\nldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
    "add sp,sp,#160\nret\n"
    ".size emulated_switch,.-emulated_switch\n");
enum { ENTRY = 11, WORDS = 20 };
#else
#error "the emulated backend knows the stacks of x86-64 and of AArch64"
#endif

/* The running fiber stops here until it is READY again. */
static void stop(state why) {
    fiber *f = group.fibers + group.now;
    f->is = why;
    emulated_switch(&f->at, group.host);
}

static void enter(void) {
    group.kernel->run(group.call, &group.fibers[group.now].m);
    for (;;)
        stop(ENDED);
}

static uint8_t *stack_of(int i) {
    return group.stacks + (size_t)i * STACK;
}

/* A stack that enters `enter` when it is switched to, as if `enter` had been called. */
static void *new_stack(int i) {
    void **top = (void **)(void *)(stack_of(i) + STACK) - 2 - WORDS;
    memset(top, 0, WORDS * sizeof *top);
    top[ENTRY] = (void *)(uintptr_t)enter;
    memset(stack_of(i), POISON, 16);
    return top;
}

void emulated_barrier(void) {
    stop(AT_BARRIER);
}

int emulated_thread(void) {
    return group.now;
}

void emulated_leave_out(const char *site) {
    snprintf(left_out, sizeof left_out, "%s", site ? site : "");
}

/* Names a barrier that is reached for the first time. Several barriers of a kernel on one line (from a macro) are numbered in
 * order. */
static void meet(emulated_site *s) {
    const char *slash = strrchr(s->file, '/');
    int nth = 1;
    for (const emulated_site *other = sites; other; other = other->next)
        nth += other->first == group.kernel && other->line == s->line && !strcmp(other->file, s->file);
    s->first = group.kernel;
    snprintf(s->name, sizeof s->name, "%s:%d:%d", slash ? slash + 1 : s->file, s->line, nth);
    s->next = sites;
    sites = s;
}

void emulated_barrier_at(emulated_site *s) {
    if (!s->first)
        meet(s);
    if (!*left_out || strcmp(s->name, left_out) != 0)
        emulated_barrier();
}

uint32_t emulated_take(uint32_t bits, int lane) {
    fiber *f = group.fibers + group.now;
    unsigned turn = f->takes++ & 1;
    f->posted[turn] = bits;
    f->wants = lane;
    stop(AT_TAKE);
    return group.fibers[group.now - f->m.lane + f->wants].posted[turn];
}

/* --- running a group */

static uint32_t next_random(void) { /* xorshift64* (Marsaglia; Vigna) */
    group.random ^= group.random >> 12;
    group.random ^= group.random << 25;
    group.random ^= group.random >> 27;
    return (uint32_t)(group.random * 0x2545F4914F6CDD1Du >> 32);
}

static void shuffle(int *order, int n) {
    for (int i = n - 1; i > 0; i--) {
        int j = (int)(next_random() % (uint32_t)(i + 1)), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}

static int all_are(int first, int n, state is) {
    for (int i = first; i < first + n; i++)
        if (group.fibers[i].is != is)
            return 0;
    return 1;
}

static void set_all(int first, int n) {
    for (int i = first; i < first + n; i++)
        group.fibers[i].is = READY;
}

/* Runs the ready threads of a wave until they wait. When all have arrived at an exchange, they are ready again. */
static int run_wave(int first) {
    int wave = group.kernel->wave, ran = 0;
    for (int i = first; i < first + wave; i++) {
        fiber *f = group.fibers + group.order[i];
        if (f->is != READY)
            continue;
        group.now = group.order[i];
        emulated_switch(&group.host, f->at);
        ran = 1;
    }
    if (all_are(first, wave, AT_TAKE))
        set_all(first, wave);
    return ran;
}

/* Runs each wave in turn; some run as far as they can without the others. */
static int run_waves(void) {
    int ran = 0, wave = group.kernel->wave, waves = group.n / wave;
    shuffle(group.waves, waves);
    for (int i = 0; i < waves; i++) {
        int far = next_random() % 2;
        while (run_wave(group.waves[i] * wave)) {
            ran = 1;
            if (!far)
                break;
        }
    }
    if (all_are(0, group.n, AT_BARRIER))
        set_all(0, group.n);
    return ran;
}

static const char *fail(const char *what, const int *at) {
    snprintf(group.why, sizeof group.why, "kernel %s, group (%d, %d, %d): %s", group.kernel->name, at[0], at[1], at[2],
             what);
    return group.why;
}

static int is_poison(const uint8_t *at, size_t n) {
    while (n && *at == POISON)
        at++, n--;
    return n == 0;
}

static void prepare(const emulated_grid *g, const int *at) {
    int wave = group.kernel->wave;
    memset(group.local, POISON, g->local + BORDER);
    for (int i = 0; i < group.n; i++) {
        fiber *f = group.fibers + i;
        f->is = READY;
        f->takes = 0;
        f->at = new_stack(i);
        f->m = (self){i, group.n, i % wave, i / wave, group.n / wave, {at[0], at[1], at[2]}, (char *)group.local};
    }
}

static const char *run_group(const emulated_grid *g, const int *at) {
    prepare(g, at);
    for (int i = 0; i < group.n; i += group.kernel->wave)
        shuffle(group.order + i, group.kernel->wave);
    while (run_waves())
        continue;
    if (!all_are(0, group.n, ENDED))
        return fail("some threads wait for others that have ended or wait elsewhere", at);
    if (!is_poison(group.local + g->local, BORDER))
        return fail("something was written behind the group's memory", at);
    for (int i = 0; i < group.n; i++)
        if (!is_poison(stack_of(i), 16))
            return fail("a thread's stack was not large enough", at);
    return NULL;
}

static const char *make_room(void) {
    if (group.stacks)
        return NULL;
    group.stacks =
        mmap(NULL, (size_t)THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    group.local = aligned_alloc(64, LOCAL_MOST + BORDER);
    if (group.stacks != MAP_FAILED && group.local)
        return NULL;
    group.stacks = NULL;
    return "no memory for the threads' stacks";
}

static uint64_t common(uint64_t a, uint64_t b) {
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Runs each group once, in strides coprime to their number. */
static const char *run_groups(const emulated_grid *g) {
    uint64_t n = (uint64_t)g->groups[0] * g->groups[1] * g->groups[2], step = 1, at = n ? next_random() % n : 0;
    const char *fault = NULL;
    for (int i = 0; i < 8 && (step == 1 || common(step, n) != 1); i++)
        step = 1 + next_random() % (n ? n : 1);
    step = common(step, n) == 1 ? step : 1;
    for (uint64_t i = 0; i < n && !fault; i++, at = (at + step) % n) {
        int place[3] = {(int)(at % g->groups[0]), (int)(at / g->groups[0] % g->groups[1]),
                        (int)(at / g->groups[0] / g->groups[1])};
        fault = run_group(g, place);
    }
    return fault;
}

const char *emulated_launch(const emulated_kernel *k, const emulated_grid *g, const gpu_call *call, uint64_t seed) {
    static const int nowhere[3] = {0};
    const char *fault = make_room();
    group.kernel = k;
    group.call = call;
    group.n = (int)g->threads;
    group.random = seed * 0x9E3779B97F4A7C15u + 1;
    if (fault)
        return fault;
    if (!g->threads || g->threads > THREADS || (int)g->threads > k->threads || g->threads % (uint32_t)k->wave)
        return fail("a group cannot have so many threads", nowhere);
    if (g->local > LOCAL_MOST)
        return fail("a group cannot have so much memory", nowhere);
    for (int i = 0; i < group.n; i++)
        group.order[i] = group.waves[i] = i;
    return run_groups(g);
}
