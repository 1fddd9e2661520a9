/* cpu.h: what the walker and the kernels of the CPU backend share.
 *
 * A plan becomes an array of cpu_call, one per step, over an array of cpu_view with real addresses. compile() makes both
 * and checks every call at its largest shapes, so a kernel trusts shapes, formats and bounds; only numbers that come from
 * the step block or a state (ids, slots, rows, blocks) are checked by the kernel where it uses them. A kernel is one
 * cpu_kernel per op and instruction set; its work is cut into items, which the walker hands out to the threads in grains,
 * with a barrier between steps.
 * Views, arguments and scratch belong to the exec; data belongs to the buffers.
 */
#ifndef SATCHEL_CPU_H
#define SATCHEL_CPU_H

#include <stdatomic.h>

#include "backend.h"
#include "block_format.h"

typedef struct {
    uint8_t *data;
    uint64_t stride;   /* bytes; of a packed weight: from one matrix of a stack to the next */
    uint64_t width;    /* elements under one index of the first dimension */
    uint32_t format, ndim;
    int32_t shape[4];
    int packed;        /* a weight in panels, see panel.h */
} cpu_view;

typedef struct cpu_set cpu_set;
typedef struct product_kernel product_kernel;
typedef void cpu_unpack(const uint8_t *blocks, float *to, int64_t n);

typedef struct {
    const cpu_view *v;       /* the output, then the inputs */
    const void *arg;
    uint8_t *scratch;        /* of thread 0; the others' follow */
    uint64_t scratch_stride; /* bytes; the most that a step of the plan needs, a multiple of 64 */
    uint8_t *shared;         /* one for all threads: CPU_COUNTERS counters, which are zero between steps, and what a step wants */
    atomic_int *fault;       /* 0, or 1 + the number of a step that met a bad index */
    int n_in, step;
    uint32_t flags;          /* of hal_options: HAL_FAST */
    const cpu_set *set;      /* that this kernel is of */
} cpu_call;

/* Items of work, and how many of them a thread takes at a time: what is no more than one grain runs on one thread. */
typedef struct {
    int64_t items, grain;
} cpu_split;

typedef struct {
    const char *(*check)(const cpu_call *); /* NULL, or what is wrong with shapes and formats */
    uint64_t (*scratch)(const cpu_call *);  /* bytes that each thread needs; NULL: none */
    cpu_split (*split)(const cpu_call *);   /* how the shapes of this run are cut; NULL: one item */
    void (*run)(const cpu_call *, int64_t from, int64_t to, int thread); /* items from .. to - 1; their order is free */
    int takes_packed;                       /* its weights may be packed */
    uint64_t (*shared)(const cpu_call *);   /* bytes of scratch that all threads share; NULL: none */
} cpu_kernel;

enum { CPU_COUNTERS = 8192 };

enum { CPU_READ_UNIT = 1024, CPU_READ_WAYS = 5 };

enum { CPU_FAMILIES = 8 };

/* The kernels of one instruction set. A set that is in most units like an older one, its base, has only what its own units
 * define; the functions below look in the base for the rest. */
struct cpu_set {
    const char *name;
    const cpu_set *base;
    const cpu_kernel *kernels[HAL_N_OPS];             /* in the order of HAL_OP_; NULL: as the base */
    const product_kernel *products[CPU_FAMILIES];     /* tables of families (product.h); the formats of one are in no other */
    cpu_unpack *(*unpack)(uint32_t format);           /* NULL: as the base; gives NULL for no such format */
    uint64_t (*multiply)(uint32_t what, uint64_t rounds); /* HAL_MEASURE_: how many multiply-adds that was; 0: it has none */
    void (*read)(const uint8_t *, uint64_t bytes, int way); /* of CPU_READ_WAYS; bytes: a multiple of CPU_READ_UNIT */
};

const cpu_set *cpu_set_best(const char *forced); /* NULL: no set of that name runs here */
const cpu_kernel *cpu_kernel_of(const cpu_set *, int op); /* op: of HAL_OP_ */
cpu_unpack *cpu_unpack_of(const cpu_set *, uint32_t format); /* NULL: no such format */
const hal_backend *cpu_backend(void);

/* Kernel sources are compiled once per instruction set; CPU_NAME(x) is x of the set that is being compiled. A unit reaches
 * what another unit of its set has through cpu_call's set, for the two may be compiled for different sets. */
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

/* `items` of which each touches about `work` numbers: a grain is worth the price of handing it out. */
static inline cpu_split cpu_grains(int64_t items, int64_t work) {
    int64_t grain = 8192 / (work > 0 ? work : 1);
    return (cpu_split){items, grain > 1 ? grain : 1};
}

/* One item a row of the output. */
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
