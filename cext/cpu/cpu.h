/* cpu.h: interface between the plan runner (run.c) and the kernels of the CPU backend.
 *
 * compile() turns a plan into an array of cpu_call, one per step, over an array of cpu_view with host addresses. It checks
 * every call at its maximum shapes, so a kernel trusts shapes, formats and bounds. A kernel checks only the values that come
 * from the step block or a state (ids, slots, rows, blocks), where it uses them. There is one cpu_kernel per op and
 * instruction set. Its work is divided into items; threads take items in grains, and a step begins when the step before it has
 * ended. Views, arguments and scratch belong to the exec; data belongs to the buffers.
 */
#ifndef SATCHEL_CPU_H
#define SATCHEL_CPU_H

#include <stdatomic.h>

#include "backend.h"
#include "block_format.h"

typedef struct {
    uint8_t *data;
    uint64_t stride; /* bytes from row to row; packed weight: from matrix to matrix of a stack */
    uint64_t width;  /* elements of a row: the product of all dimensions but the first */
    uint32_t format, ndim;
    int32_t shape[4];
    int packed; /* 1: a weight in panels, see panel.h */
} cpu_view;

typedef struct cpu_set cpu_set;
typedef struct product_kernel product_kernel;
typedef void cpu_unpack(const uint8_t *blocks, float *to, int64_t n);

typedef struct {
    const cpu_view *v; /* the output, then the inputs */
    const void *arg;
    uint8_t *scratch;        /* scratch of thread 0; the other threads' follow */
    uint64_t scratch_stride; /* bytes from thread to thread: the plan's maximum, a multiple of 64 */
    uint8_t *shared;   /* scratch of all threads: CPU_COUNTERS counters, zero between steps, then the kernel's own */
    atomic_int *fault; /* 0, or 1 + the number of a step that met an index out of range */
    int n_in, step;
    uint32_t flags;     /* of hal_options: HAL_FAST */
    const cpu_set *set; /* the kernel's instruction set */
} cpu_call;

/* Number of work items, and items per grain, which a thread takes at a time. A step of one grain runs on one thread. */
typedef struct {
    int64_t items, grain;
} cpu_split;

typedef struct {
    /* NULL, or what the kernel needs beyond the op's rules (shapes.h); a NULL pointer: nothing */
    const char *(*check)(const cpu_call *);
    uint64_t (*scratch)(const cpu_call *); /* bytes of scratch per thread; NULL: none */
    cpu_split (*split)(const cpu_call *);  /* items at the shapes of this run; NULL: one item */
    void (*run)(const cpu_call *, int64_t from, int64_t to,
                int thread);              /* computes items from .. to - 1, in any order */
    int takes_packed;                     /* 1: its weights may be packed */
    uint64_t (*shared)(const cpu_call *); /* bytes of scratch that all threads share; NULL: none */
} cpu_kernel;

enum { CPU_COUNTERS = 8192 };

enum { CPU_READ_UNIT = 1024, CPU_READ_WAYS = 5 };

enum { CPU_FAMILIES = 8 };

/* The kernels of one instruction set. A set with a base (an older set) has entries for the source files that are compiled for
 * it; the two functions below take the others from the base. */
struct cpu_set {
    const char *name;
    const cpu_set *base;
    const cpu_kernel *kernels[HAL_N_OPS];         /* indexed by HAL_OP_; NULL: the base's, if there is one */
    const product_kernel *products[CPU_FAMILIES]; /* tables of families (product.h); a format is in one family only */
    cpu_unpack *(*unpack)(uint32_t format);       /* NULL: the base's; gives NULL for an unknown format */
    /* for measure(): runs `rounds` of a HAL_MEASURE_ loop and gives its multiply-adds; 0: the set has no such instruction */
    uint64_t (*multiply)(uint32_t what, uint64_t rounds);
    /* way: 0 .. CPU_READ_WAYS - 1; bytes: a multiple of CPU_READ_UNIT */
    void (*read)(const uint8_t *, uint64_t bytes, int way);
};

extern const char cpu_set_list[];
const cpu_set *cpu_set_best(const char *forced); /* NULL: no set named `forced` runs on this CPU */
const hal_backend *cpu_backend(void);

/* op: a HAL_OP_ value. NULL: the CPU lacks it; a plan for the CPU has the op's parts instead. */
static inline const cpu_kernel *cpu_kernel_of(const cpu_set *set, int op) {
    while (!set->kernels[op] && set->base)
        set = set->base;
    return set->kernels[op];
}

/* NULL: unknown format */
static inline cpu_unpack *cpu_unpack_of(const cpu_set *set, uint32_t format) {
    while (!set->unpack)
        set = set->base;
    return set->unpack(format);
}

/* Kernel sources are compiled once per instruction set; CPU_NAME(x) is x's name in the set being compiled. A source file calls
 * functions of another one through cpu_call.set, because the two may be compiled for different sets. */
#ifdef CPU_ISA
#define CPU_JOIN2(a, b) a##_##b
#define CPU_JOIN(a, b) CPU_JOIN2(a, b)
#define CPU_NAME(x) CPU_JOIN(x, CPU_ISA)
#define CPU_KERNEL(op) const cpu_kernel CPU_NAME(cpu_kernel_##op)
#define HAL_OP(NAME, name, size) extern const cpu_kernel CPU_NAME(cpu_kernel_##name);
#include "hal_ops.inc"
#undef HAL_OP
cpu_unpack *CPU_NAME(cpu_unpack_find)(uint32_t format);
uint64_t CPU_NAME(cpu_multiply)(uint32_t what, uint64_t rounds);
void CPU_NAME(cpu_read)(const uint8_t *, uint64_t bytes, int way);
#endif

enum { F32 = 0, F16 = 1, BF16 = 30, I32 = HAL_FORMAT_I32 };

static inline void cpu_fault(const cpu_call *c) {
    atomic_store_explicit(c->fault, c->step + 1, memory_order_relaxed);
}

static inline uint8_t *cpu_scratch(const cpu_call *c, int thread) {
    return c->scratch + c->scratch_stride * (uint64_t)thread;
}

static inline uint8_t *cpu_row(const cpu_view *v, int64_t i) {
    return v->data + v->stride * (uint64_t)i;
}

static inline float *cpu_f32(const cpu_view *v, int64_t i) {
    return (float *)cpu_row(v, i);
}

/* Index i of a one-dimensional int32 view. */
static inline int32_t cpu_i32(const cpu_view *v, int64_t i) {
    return *(const int32_t *)cpu_row(v, i);
}

/* Splits `items` of about `work` elements each into grains large enough to amortize their scheduling. */
static inline cpu_split cpu_grains(int64_t items, int64_t work) {
    int64_t grain = 8192 / (work > 0 ? work : 1);
    return (cpu_split){items, grain > 1 ? grain : 1};
}

/* One item per row of the output. */
static inline cpu_split cpu_by_row(const cpu_call *c) {
    return cpu_grains(c->v[0].shape[0], (int64_t)c->v[0].width);
}

static inline int cpu_is(const cpu_view *v, uint32_t format, uint32_t ndim) {
    return v->format == format && v->ndim == ndim;
}

static inline int cpu_same_shape(const cpu_view *a, const cpu_view *b) {
    return a->ndim == b->ndim && a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1] &&
           a->shape[2] == b->shape[2] && a->shape[3] == b->shape[3];
}

#endif
