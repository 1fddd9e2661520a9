/* parts.c: a plan cut at its collectives. The CPU backend runs the steps between them, and at a collective the members' threads
 * meet (meet.h). Sums go in the order of members, so all have the same bits.
 *
 * A run that fails on one member (a slot out of range) fails on all: a member that cannot go on comes to the next meeting with
 * nothing. A member that is lost, or does not come in time, breaks the group.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "own_rows.h"
#include "remote.h"
#include "shapes.h"
#include "step.h"

static int is_collective(int op) {
    return op == HAL_OP_REDUCE_ADD || op == HAL_OP_GATHER_COLUMNS || op == HAL_OP_FIRST ||
           op == HAL_OP_REDUCE_SCATTER || op == HAL_OP_ALL_GATHER;
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
    if (m->in.view.ndim == 1)
        m->in.columns = m->out.columns = 1; /* of first: a list, whose entries are its rows */
    if (s->n_in > 1)
        m->rest = viewed(plan, cpu, s->view + 2);
    if (op == HAL_OP_GATHER_COLUMNS)
        memcpy(&m->place, plan->args + s->arg, sizeof m->place);
    if (op == HAL_OP_REDUCE_SCATTER || op == HAL_OP_ALL_GATHER)
        memcpy(&m->ranks, plan->args + s->arg, sizeof m->ranks); /* the first argument of both */
    rows = (uint64_t)m->in.view.shape[0];
    for (int i = 0; i < 2; i++)
        m->brought[i] = (brought){calloc(rows * m->in.columns, sizeof(float)), m->in.columns};
    m->result = calloc(m->out.columns, sizeof(float));
    m->kept = calloc(m->out.columns, sizeof(float));
    m->came = calloc(m->out.columns, sizeof(float));
    return m->brought[0].rows && m->brought[1].rows && m->result && m->kept && m->came
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
    free(m->came);
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
    if (from == to && plan->n_steps)
        return 0;
    part.steps += from;
    part.n_steps = to - from;
    if (from || to < plan->n_steps)
        part.n_overrides = 0; /* they are numbered by the whole plan's steps */
    return cpu_backend()->compile(e->device->cpu, &part, cpu, out);
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
        e->parts[e->n_parts - 1].steps = step - from;
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

void peer_copy(const hal_device *to, int own, void *at, const void *from, size_t size) {
    if (own || !to->unread)
        memcpy(at, from, size);
}

/* The member that has row `t` of `rows` alone. */
static uint32_t owner_of(const hal_exec *e, int rows, int t) {
    uint32_t owner = 0;
    while (own_rows_first(rows, owner + 1, e->group->members) <= t)
        owner++;
    return owner;
}

/* Row `t` of all rows' result, from what all members brought. It comes directly from their memory, or through the host's. */
static void combine(const hal_exec *e, const meeting *m, const void *const *all, int rows, int t) {
    const uint32_t owner = m->op == HAL_OP_ALL_GATHER ? owner_of(e, rows, t) : 0;
    uint64_t at = 0;
    for (uint32_t i = owner; i < e->group->members; i++) {
        const brought *b = all[i];
        const int first = m->op == HAL_OP_ALL_GATHER ? own_rows_first(rows, owner, e->group->members) : 0;
        const float *row = b->rows + b->columns * (uint64_t)(t - first);
        if (e->group->link != HAL_LINK_HOST) {
            memset(m->came, 0, sizeof(float) * b->columns);
            peer_copy(e->device, i == e->rank, m->came, row, sizeof(float) * b->columns);
            row = m->came;
        }
        if (m->op == HAL_OP_GATHER_COLUMNS)
            memcpy(m->result + at, row, sizeof(float) * b->columns);
        else if (m->op == HAL_OP_FIRST || m->op == HAL_OP_ALL_GATHER) {
            memcpy(m->result, row, sizeof(float) * b->columns); /* its bits: they may be int32 */
            break;
        } else
            for (uint64_t n = 0; n < m->out.columns; n++)
                m->result[n] = i ? m->result[n] + row[n] : row[n];
        at += b->columns;
    }
}

/* Row `t` of all rows, which is row `t - first` of the result. */
static int finish_row(const meeting *m, int t, int first) {
    int code;
    if (m->rest.cpu) {
        const int own = m->rest.view.count == HAL_COUNT_OWN;
        if ((code = move_row(&m->rest, m->rest.view.ndim == 1 ? 0 : own ? t - first : t, m->kept, 0)))
            return code;
        for (uint64_t n = 0; n < m->out.columns; n++)
            m->result[n] += m->kept[n];
    }
    return move_row(&m->out, t - first, m->result, 1);
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
    const int came = rows_of(e, &m->in), rows = m->op == HAL_OP_ALL_GATHER ? rows_of(e, &m->out) : came;
    const int scatters = m->op == HAL_OP_REDUCE_SCATTER;
    const int from = scatters ? own_rows_first(rows, e->rank, e->group->members) : 0;
    const int until = scatters ? own_rows_first(rows, e->rank + 1, e->group->members) : rows;
    int code = 0;
    for (int t = 0; t < came && !code; t++)
        code = move_row(&m->in, t, mine->rows + m->in.columns * (uint64_t)t, 0);
    if (code || (code = come(e, m, number, mine, all)))
        return code;
    for (uint32_t i = 0; i < e->group->members; i++)
        if (!all[i]) {
            snprintf(e->why, sizeof e->why, "member %u of the group could not compute the step", i);
            return HAL_E_INVALID;
        }
    for (int t = from; t < until && !code; t++) {
        combine(e, m, all, rows, t);
        if (e->device->drift && number - e->first + 1 == e->device->drift)
            m->result[0] += 1000;
        code = finish_row(m, t, from);
    }
    return code;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

int times_of_parts(hal_exec *e, uint64_t *ns, uint32_t n_steps) {
    uint32_t at = 0;
    for (uint32_t i = 0; i < e->n_parts; i++) {
        const exec_part *p = e->parts + i;
        int code = 0;
        if (at + p->steps + (p->meeting != NULL) > n_steps)
            return hal_fail(HAL_E_INVALID, "the plan has more than %u steps", n_steps);
        if (p->cpu && p->steps)
            code = cpu_backend()->times(p->cpu, ns + at, p->steps);
        if (code)
            return code;
        at += p->steps;
        if (p->meeting)
            ns[at++] = p->ns;
    }
    return 0;
}

int run_parts(hal_exec *e) {
    uint64_t number = e->first;
    int code;
    e->why[0] = 0;
    for (uint32_t i = 0; i < e->n_parts; i++) {
        exec_part *p = e->parts + i;
        const void *all[HAL_MEMBERS];
        uint64_t began;
        if (e->group && meet_why(e->group->meet, e->why, sizeof e->why))
            return HAL_E_LOST;
        code = p->cpu ? cpu_backend()->run(p->cpu, e->block, e->size) : 0;
        if (code) {
            snprintf(e->why, sizeof e->why, "%s", cpu_backend()->error());
            if (p->meeting)
                come(e, p->meeting, number, NULL, all);
            return code;
        }
        began = now_ns();
        code = p->meeting ? run_meeting(e, p->meeting, number++) : 0;
        p->ns += now_ns() - began;
        if (code) {
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
