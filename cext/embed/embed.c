/* embed.c: see embed.h. Rows are added in float64, one after the other, so that a vector does not depend on how steps cut its text;
 * all sums are in the order of numpy's, so that vectors are those of Python bit for bit. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "embed.h"
#include "error.h"

enum { SLOT = 0, ACCUMULATORS = 8, SUM_BLOCK = 128 };

/* The smallest program that has room. */
static program *find(satchel_model *m, int32_t tokens, int32_t rows) {
    program *found = NULL;
    for (int i = 0; i < m->n_programs; i++) {
        program *p = m->programs + i;
        if ((int64_t)p->tokens >= tokens && (int64_t)p->rows >= rows && (!found || p->tokens < found->tokens))
            found = p;
    }
    return found;
}

/* Writes the step block of tokens from position `start` on, of which the last `rows` give a row. */
static int fill(satchel_model *m, program *p, const int32_t *ids, int32_t start, int32_t count, int32_t first,
                int32_t rows) {
    int32_t *counts = (int32_t *)p->block, *inputs[FIELD_PARAMS];
    int code = blocks_advance(&m->blocks, SLOT, start + count);
    if (code)
        return code;
    for (int i = 0; i < FIELD_PARAMS; i++)
        inputs[i] = (int32_t *)(p->block + p->layout.fields[i]);
    counts[HAL_COUNT_TOKENS] = count;
    counts[HAL_COUNT_ROWS] = rows;
    for (int32_t i = 0; i < count; i++) {
        inputs[FIELD_IDS][i] = ids[start + i];
        inputs[FIELD_POS][i] = start + i;
        inputs[FIELD_SLOT][i] = SLOT;
    }
    for (int32_t i = 0; i < rows; i++)
        inputs[FIELD_ROWS][i] = first + i;
    for (int k = 0; k < m->blocks.n_groups; k++)
        memcpy(p->block + p->layout.tables[k], m->blocks.groups[k].table,
               sizeof(int32_t) * (size_t)m->size.slots * (size_t)m->size.width);
    return 0;
}

/* Runs the step, and adds its rows to the sums. */
static int run(satchel_model *m, program *p, int32_t rows, float *values, double *sums) {
    uint32_t width = m->plan.head->width;
    int code = m->backend->run(p->exec, p->block, p->layout.size);
    if (!code)
        code = m->backend->wait(p->exec, UINT32_MAX);
    if (!code && rows)
        code = m->backend->read(m->out, p->output, values, sizeof *values * width * (uint64_t)rows);
    for (int32_t i = 0; i < rows && !code; i++)
        for (uint32_t k = 0; k < width && !code; k++) {
            float value = values[(size_t)i * width + k];
            if (!isfinite(value))
                code = hal_fail(HAL_E_DEVICE, "the model's numbers are not finite, or its file is damaged");
            sums[k] = m->plan.head->pooling == POOLING_MEAN ? sums[k] + value : value;
        }
    return code;
}

/* Which of the tokens from `start` on give rows: *first of the step, and their number. */
static int32_t rows_of(uint32_t pooling, int32_t start, int32_t count, int64_t all, int32_t *first) {
    int last = start + count == all;
    *first = pooling == POOLING_LAST ? count - 1 : 0;
    return pooling == POOLING_MEAN ? count : pooling == POOLING_LAST ? last : !start;
}

/* The sum of squares, in the order of numpy's pairwise sum. */
static double squares(const double *x, size_t n) {
    double r[ACCUMULATORS], sum = 0;
    size_t i;
    if (n < ACCUMULATORS) {
        for (i = 0; i < n; i++)
            sum += x[i] * x[i];
        return sum;
    }
    if (n > SUM_BLOCK) {
        size_t half = n / 2 - n / 2 % ACCUMULATORS;
        return squares(x, half) + squares(x + half, n - half);
    }
    for (i = 0; i < ACCUMULATORS; i++)
        r[i] = x[i] * x[i];
    for (; i + ACCUMULATORS <= n; i += ACCUMULATORS)
        for (size_t k = 0; k < ACCUMULATORS; k++)
            r[k] += x[i + k] * x[i + k];
    sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    for (; i < n; i++)
        sum += x[i] * x[i];
    return sum;
}

static void finish(const plan_head *h, int64_t count, double *sums, float *out) {
    double length;
    for (uint32_t i = 0; i < h->width && h->pooling == POOLING_MEAN; i++)
        sums[i] /= (double)count;
    length = sqrt(squares(sums, h->width));
    for (uint32_t i = 0; i < h->width; i++)
        out[i] = (float)(length > 0 ? sums[i] / length : sums[i]);
}

static int check(const satchel_model *m, int64_t count) {
    const plan_head *h = m->plan.head;
    int64_t most = h->whole && (int64_t)h->batch < m->size.context ? (int64_t)h->batch : m->size.context;
    if (count < 1)
        return hal_fail(SATCHEL_E_ARGUMENT, "text: expected one token or more, got none");
    if (count > most)
        return hal_fail(SATCHEL_E_LONG, "text: expected at most %lld tokens, got %lld", (long long)most,
                        (long long)count);
    return 0;
}

int embed_tokens(satchel_model *m, const int32_t *ids, int64_t count, float *out) {
    const plan_head *h = m->plan.head;
    float *values = malloc(sizeof *values * h->width * (size_t)h->batch);
    double *sums = calloc(h->width, sizeof *sums);
    int32_t most = (int32_t)h->batch, n;
    int code = check(m, count);
    if (!values || !sums)
        code = hal_fail(SATCHEL_E_MEMORY, "no memory for vectors of %u numbers", h->width);
    blocks_cut(&m->blocks, SLOT, 0);
    for (int32_t start = 0; start < count && !code; start += n) {
        int32_t first, rows;
        program *p;
        n = (int32_t)(count - start < most ? count - start : most);
        rows = rows_of(h->pooling, start, n, count, &first);
        p = find(m, n, rows);
        code =
            p ? fill(m, p, ids, start, n, first, rows) : hal_fail(HAL_E_INVALID, "no plan has room for %d tokens", n);
        code = model_code(code ? code : run(m, p, rows, values, sums));
    }
    blocks_cut(&m->blocks, SLOT, 0);
    if (!code)
        finish(h, count, sums, out);
    free(values);
    free(sums);
    return code;
}
