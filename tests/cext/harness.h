/* harness.h: what the C test program's parts share: the backends under test, one-step plans, counts of what held.
 *
 * Backends are linked in, not loaded, so that sanitizers and the wrapped malloc see all of them. Operands are dense and
 * belong to the test; inputs are wrapped where the backend can, in memory of exactly their size, so that a read past the
 * end is seen.
 */
#ifndef SATCHEL_TEST_HARNESS_H
#define SATCHEL_TEST_HARNESS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"

const hal_backend *cpu_backend(void);
const hal_backend *null_backend(void);
const hal_backend *remote_backend(void);

typedef struct {
    const hal_backend *b;
    hal_device *device;
    char name[48];
    int computes; /* 0: results mean nothing */
} target;

enum { F32 = 0, F16 = 1, BF16 = 30, I8 = HAL_FORMAT_I8, I32 = HAL_FORMAT_I32 };
enum { A8_32 = 1032, BF16X2 = 1216, A8_256 = 1256 };

typedef struct {
    uint32_t format;
    int ndim;
    int32_t shape[4];
    void *data;
    int packed; /* a weight that the device gets in its own order */
} operand;

/* What a test wants with an operand: its elements' type is told by the pointer. */
#define OPERAND(f, p, ...)                                                                                             \
    ((operand){(f), (int)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)), {__VA_ARGS__}, (p)})

extern int passed, failed;
#define CHECK(ok, ...) (check((ok) != 0, __FILE__, __LINE__, __VA_ARGS__))
int check(int ok, const char *file, int line, const char *format, ...) __attribute__((format(printf, 4, 5)));

uint64_t format_bytes(uint32_t format, uint64_t elements);
int format_block(uint32_t format);

/* Gives a weight's block these scales: the bits of f16 numbers for d and, where it has one, for its minimum; formats with
 * other scales get some of about that size. Codes that stand for no number become numbers. */
void set_scales(uint32_t format, uint8_t *block, uint16_t d, uint16_t minimum);

/* Runs one op; the output's data gets the result (for an op in place: in[0]'s, in == out). Returns the backend's code. */
int run_op(const target *, const char *op, const void *arg, uint32_t arg_size, operand *out, const operand *in,
           int n_in);

/* A plan in the making, in fixed tables. */
typedef struct {
    hal_step steps[32];
    hal_view views[160];
    hal_bufdesc buffers[64];
    hal_op ops[32];
    _Alignas(8) uint8_t args[512];
    hal_plan plan;
} builder;

void begin_plan(builder *, uint64_t step_bytes);
int add_buffer(builder *, uint32_t usage, uint64_t size);
void add_step(builder *, const char *op, const void *arg, uint32_t arg_size, int n_in);
void add_view(builder *, int buffer, uint64_t offset, int count, const operand *shape);

/* Random numbers that are the same in every run. */
uint64_t random_bits(void);
float random_float(float scale);
int random_below(int n);
float *random_floats(int n, float scale);

double nmse(const float *got, const double *want, int n);

void test_ops(const target *);
void test_fused(int sums);
/* floats: only weights that meet floats; brief: the longest rows by fewer columns. */
void test_products(const target *, int floats, int brief);
void test_sample(const target *);
void test_recurrent(const target *);
void test_wrong_plans(const target *);
void test_damaged_plans(const target *, int rounds);
void test_many_runs(const target *, int runs);
void test_pool(int rounds);
void test_cuts(void);
void test_searches(const char *set);
void test_fork(const hal_backend *);
void test_limits(void);

extern long allocations; /* calls of malloc and its kin so far */

#endif
