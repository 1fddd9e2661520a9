/* group.c: groups of the test backend. A plan is cut at its collectives: the CPU backend runs the steps between them, and at a
 * collective the members' threads meet (meet.h). Sums go in the order of members, so all have the same bits.
 *
 * A run that fails on one member (a token out of range) fails on all: a member that cannot go on comes to the next meeting with
 * nothing. A member that is lost, or does not come in time, breaks the group.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "remote.h"
#include "shapes.h"
#include "step.h"

struct hal_group {
    uint32_t members, timeout_ms;
    hal_device *devices[HAL_MEMBERS];
    meet *meet;
    uint64_t meetings; /* of all queued runs */
    pthread_mutex_t lock;
};

int is_collective(int op) {
    return op == HAL_OP_REDUCE_ADD || op == HAL_OP_GATHER_COLUMNS;
}

int supports_meeting(const hal_plan *plan, uint32_t step) {
    const hal_step *s = plan->steps + step;
    const block_format *f;
    const char *fault;
    int op, code = step_check(plan, step, &op);
    if (code)
        return code;
    if (!is_collective(op))
        return 0;
    for (uint32_t i = 0; i <= s->n_in; i++)
        if ((fault = step_view_fault(plan, plan->views + s->view + i, &f)))
            return fail_view(plan, step, (int)i, fault);
    fault = shape_fault(op, plan->views + s->view, s->n_in, plan->args + s->arg, 0);
    return fault ? fail_step(plan, step, fault) : 1;
}

static meeting_view viewed(const hal_plan *plan, hal_buffer **cpu, uint32_t view) {
    const hal_view *v = plan->views + view;
    return (meeting_view){.cpu = cpu[v->buffer], .view = *v, .columns = (uint64_t)v->shape[v->ndim - 1]};
}

static int new_meeting(const hal_plan *plan, uint32_t step, hal_buffer **cpu, meeting **out) {
    const hal_step *s = plan->steps + step;
    meeting *m = *out = calloc(1, sizeof *m);
    int op;
    uint64_t rows;
    if (!m || step_check(plan, step, &op))
        return hal_fail(HAL_E_MEMORY, "no memory for a collective");
    m->op = op;
    snprintf(m->what, sizeof m->what, "%.28s of step %u", plan->ops[s->op].name, step);
    m->out = viewed(plan, cpu, s->view);
    m->in = viewed(plan, cpu, s->view + 1);
    if (s->n_in > 1)
        m->rest = viewed(plan, cpu, s->view + 2);
    if (op == HAL_OP_GATHER_COLUMNS)
        memcpy(&m->place, plan->args + s->arg, sizeof m->place);
    rows = (uint64_t)m->in.view.shape[0];
    for (int i = 0; i < 2; i++)
        m->brought[i] = (brought){calloc(rows * m->in.columns, sizeof(float)), m->in.columns};
    m->result = calloc(m->out.columns, sizeof(float));
    m->kept = calloc(m->out.columns, sizeof(float));
    return m->brought[0].rows && m->brought[1].rows && m->result && m->kept
               ? 0
               : hal_fail(HAL_E_MEMORY, "no memory for a collective");
}

static void free_meeting(meeting *m) {
    if (!m)
        return;
    free(m->brought[0].rows);
    free(m->brought[1].rows);
    free(m->result);
    free(m->kept);
    free(m);
}

void free_parts(hal_exec *e) {
    for (uint32_t i = 0; i < e->n_parts; i++) {
        if (e->parts[i].cpu)
            cpu_backend()->release(e->parts[i].cpu);
        free_meeting(e->parts[i].meeting);
    }
    free(e->parts);
}

/* The steps from .. to - 1 as an exec of the CPU backend; NULL where there are none. */
static int build_cpu(hal_exec *e, const hal_plan *plan, hal_buffer **cpu, uint32_t from, uint32_t to, hal_exec **out) {
    hal_plan part = *plan;
    int code;
    if (from == to && plan->n_steps)
        return 0;
    part.steps += from;
    part.n_steps = to - from;
    if (from || to < plan->n_steps)
        part.n_overrides = 0; /* they are numbered by the whole plan's steps */
    code = cpu_backend()->compile(e->device->cpu, &part, cpu, out);
    return code ? hal_fail(code, "%s", cpu_backend()->error()) : 0;
}

int build_parts(hal_exec *e, const hal_plan *plan, hal_buffer **cpu) {
    uint32_t from = 0;
    int code, collective;
    e->parts = calloc((size_t)plan->n_steps + 1, sizeof *e->parts);
    if (!e->parts)
        return hal_fail(HAL_E_MEMORY, "no memory for a plan");
    for (uint32_t step = 0; step <= plan->n_steps; step++) {
        collective = step < plan->n_steps ? supports_meeting(plan, step) : 0;
        if (collective < 0)
            return collective;
        if (!collective && step < plan->n_steps)
            continue;
        if (collective && !e->group)
            return fail_step(plan, step, "a collective needs a group of devices");
        e->n_parts++;
        if ((code = build_cpu(e, plan, cpu, from, step, &e->parts[e->n_parts - 1].cpu)) ||
            (collective && (code = new_meeting(plan, step, cpu, &e->parts[e->n_parts - 1].meeting))))
            return code;
        e->n_meetings += (uint32_t)collective;
        from = step + 1;
    }
    return 0;
}

static int rows_of(const hal_exec *e, const meeting_view *v) {
    int32_t counts[HAL_COUNTS];
    memcpy(counts, e->block, sizeof counts);
    return v->view.count >= 0 ? counts[v->view.count] : v->view.shape[0];
}

static int move_row(const meeting_view *v, int row, float *values, int write) {
    uint64_t at = v->view.offset + v->view.stride * (uint64_t)row, size = sizeof(float) * v->columns;
    return write ? cpu_backend()->write(v->cpu, at, values, size) : cpu_backend()->read(v->cpu, at, values, size);
}

/* Row `t` of the result, from what all members brought. */
static void combine(const meeting *m, uint32_t members, const void *const *all, int t) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < members; i++) {
        const brought *b = all[i];
        const float *row = b->rows + b->columns * (uint64_t)t;
        if (m->op == HAL_OP_GATHER_COLUMNS)
            memcpy(m->result + at, row, sizeof(float) * b->columns);
        else
            for (uint64_t n = 0; n < m->out.columns; n++)
                m->result[n] = i ? m->result[n] + row[n] : row[n];
        at += b->columns;
    }
}

static int finish_row(const meeting *m, int t) {
    int code;
    if (m->rest.cpu) {
        if ((code = move_row(&m->rest, m->rest.view.ndim == 1 ? 0 : t, m->kept, 0)))
            return code;
        for (uint64_t n = 0; n < m->out.columns; n++)
            m->result[n] += m->kept[n];
    }
    return move_row(&m->out, t, m->result, 1);
}

/* Comes to a meeting; nothing: this member cannot go on. */
static int come(hal_exec *e, const meeting *m, uint64_t number, const void *what, const void **all) {
    int code = meet_come(e->group->meet, e->rank, number, m->what, what, all);
    if (code)
        meet_why(e->group->meet, e->why, sizeof e->why);
    return code;
}

static int run_meeting(hal_exec *e, meeting *m, uint64_t number) {
    const void *all[HAL_MEMBERS];
    const brought *mine = m->brought + (number & 1);
    int code = 0, rows = rows_of(e, &m->in);
    for (int t = 0; t < rows && !code; t++)
        code = move_row(&m->in, t, mine->rows + m->in.columns * (uint64_t)t, 0);
    if (code || (code = come(e, m, number, mine, all)))
        return code;
    for (uint32_t i = 0; i < e->group->members; i++)
        if (!all[i]) {
            snprintf(e->why, sizeof e->why, "member %u of the group could not compute the step", i);
            return HAL_E_INVALID;
        }
    for (int t = 0; t < rows && !code; t++) {
        combine(m, e->group->members, all, t);
        code = finish_row(m, t);
    }
    return code;
}

int run_parts(hal_exec *e) {
    uint64_t number = e->first;
    int code;
    e->why[0] = 0;
    for (uint32_t i = 0; i < e->n_parts; i++) {
        const exec_part *p = e->parts + i;
        const void *all[HAL_MEMBERS];
        if (e->group && meet_why(e->group->meet, e->why, sizeof e->why))
            return HAL_E_LOST;
        code = p->cpu ? cpu_backend()->run(p->cpu, e->block, e->size) : 0;
        if (code) {
            snprintf(e->why, sizeof e->why, "%s", cpu_backend()->error());
            if (p->meeting)
                come(e, p->meeting, number, NULL, all);
            return code;
        }
        if (p->meeting && (code = run_meeting(e, p->meeting, number++))) {
            if (!e->why[0])
                snprintf(e->why, sizeof e->why, "%s", cpu_backend()->error());
            return code;
        }
    }
    return 0;
}

void leave_group(hal_exec *e) {
    if (e->group)
        meet_break(e->group->meet, e->rank, e->why);
}

int join_group(hal_device *const *devices, uint32_t n, const hal_group_options *options, hal_group **out) {
    hal_group *g;
    if (n < 1 || n > HAL_MEMBERS)
        return hal_fail(HAL_E_INVALID, "a group has 1 to %d members, got %u", HAL_MEMBERS, n);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < i; j++)
            if (devices[i] == devices[j])
                return hal_fail(HAL_E_INVALID, "members %u and %u of the group are one device", j, i);
    g = calloc(1, sizeof *g);
    if (g)
        g->meet = meet_new(n, options->timeout_ms);
    if (!g || !g->meet) {
        free(g);
        return hal_fail(HAL_E_MEMORY, "no memory for a group");
    }
    g->members = n;
    g->timeout_ms = options->timeout_ms;
    memcpy(g->devices, devices, n * sizeof *devices);
    pthread_mutex_init(&g->lock, NULL);
    *out = g;
    return 0;
}

void part_group(hal_group *g) {
    if (!g)
        return;
    meet_free(g->meet);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

void group_info(hal_group *g, hal_group_info *out) {
    meet_info(g->meet, out);
}

/* Whether two members can meet at a collective of theirs. before: columns of the members before this one. */
static int agrees(const meeting *first, const meeting *m, uint64_t before) {
    if (m->op != first->op || m->out.columns != first->out.columns || m->in.view.count != first->in.view.count ||
        m->in.view.shape[0] != first->in.view.shape[0])
        return 0;
    return m->op != HAL_OP_GATHER_COLUMNS || (uint64_t)m->place.start == before;
}

static const meeting *nth_meeting(const hal_exec *e, uint32_t n) {
    for (uint32_t i = 0; i < e->n_parts; i++)
        if (e->parts[i].meeting && n-- == 0)
            return e->parts[i].meeting;
    return NULL;
}

static int check_meetings(const hal_group *g, hal_exec *const *execs) {
    for (uint32_t i = 1; i < g->members; i++)
        if (execs[i]->n_meetings != execs[0]->n_meetings)
            return hal_fail(HAL_E_INVALID, "member %u has %u collectives, member 0 has %u", i, execs[i]->n_meetings,
                            execs[0]->n_meetings);
    for (uint32_t n = 0; n < execs[0]->n_meetings; n++) {
        const meeting *first = nth_meeting(execs[0], n);
        uint64_t before = 0;
        for (uint32_t i = 0; i < g->members; i++) {
            const meeting *m = nth_meeting(execs[i], n);
            if (!agrees(first, m, before))
                return hal_fail(HAL_E_INVALID, "collective %u differs: member 0 has %s, member %u has %s", n,
                                first->what, i, m->what);
            before += m->in.columns;
        }
        if (first->op == HAL_OP_GATHER_COLUMNS && before != first->out.columns)
            return hal_fail(HAL_E_INVALID, "collective %u: the members' columns are not its total", n);
    }
    return 0;
}

int compile_group(hal_group *g, const hal_plan *const *plans, hal_buffer *const *const *buffers, hal_exec **execs) {
    int code = 0;
    memset(execs, 0, g->members * sizeof *execs);
    for (uint32_t i = 0; i < g->members && !code; i++) {
        execs[i] = calloc(1, sizeof **execs);
        if (!execs[i]) {
            code = hal_fail(HAL_E_MEMORY, "no memory for a plan");
            break;
        }
        execs[i]->group = g;
        execs[i]->rank = i;
        if ((code = build_exec(g->devices[i], plans[i], buffers[i], execs[i]))) {
            char why[256];
            snprintf(why, sizeof why, "%s", hal_last_error());
            code = hal_fail(code, "member %u: %s", i, why);
        }
    }
    if (!code)
        code = check_meetings(g, execs);
    for (uint32_t i = 0; i < g->members && code; i++) {
        release_exec(execs[i]);
        execs[i] = NULL;
    }
    return code;
}

int run_group(hal_group *g, hal_exec *const *execs, const void *block, uint64_t size) {
    char why[256];
    int code = 0;
    for (uint32_t i = 0; i < g->members; i++)
        if (size > execs[i]->room)
            return hal_fail(HAL_E_INVALID, "the step block is larger than the step buffer");
    pthread_mutex_lock(&g->lock);
    if (meet_why(g->meet, why, sizeof why))
        code = hal_fail(HAL_E_LOST, "%s", why);
    for (uint32_t i = 0; i < g->members && !code; i++) {
        code = queue_run(execs[i], block, size, g->meetings + 1, g->timeout_ms);
        if (code) {
            snprintf(why, sizeof why, "member %u did not end its last run within %u ms", i, g->timeout_ms);
            meet_break(g->meet, i, why);
            code = hal_fail(HAL_E_LOST, "%s", why);
        }
    }
    g->meetings += execs[0]->n_meetings;
    pthread_mutex_unlock(&g->lock);
    return code;
}
