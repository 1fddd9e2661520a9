/* group.c: groups of the test backend: members that run plans with the same collectives, all in one call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "remote.h"

/* Pairs of members between which a pattern, written to the one by the other, does not read back. */
static uint32_t unread_pairs(hal_device *const *devices, uint32_t n) {
    uint32_t unread = 0;
    for (uint32_t from = 0; from < n; from++)
        for (uint32_t to = 0; to < n; to++) {
            const uint32_t pattern[2] = {0x5a7c4e1u + from, ~to};
            uint32_t found[2] = {0, 0};
            peer_copy(devices[to], from == to, found, pattern, sizeof found);
            unread += memcmp(found, pattern, sizeof found) != 0;
        }
    return unread;
}

int remote_join(hal_device *const *devices, uint32_t n, const hal_group_options *options, hal_group **out) {
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
    g->unread = options->flags & HAL_GROUP_NO_PEER ? 0 : unread_pairs(devices, n);
    g->link = g->unread || options->flags & HAL_GROUP_NO_PEER ? HAL_LINK_HOST : HAL_LINK_PCIE;
    memcpy(g->devices, devices, n * sizeof *devices);
    pthread_mutex_init(&g->lock, NULL);
    *out = g;
    return 0;
}

void remote_part(hal_group *g) {
    if (!g)
        return;
    meet_free(g->meet);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

void remote_info(hal_group *g, hal_group_info *out) {
    memset(out, 0, sizeof *out);
    meet_info(g->meet, out);
    out->link = g->link;
    out->unread = g->unread;
}

/* Whether two members can meet at a collective of theirs. before: columns of the members before this one. */
static int agrees(const meeting *first, const meeting *m, uint64_t before) {
    if (m->op != first->op || m->out.columns != first->out.columns || m->in.view.count != first->in.view.count ||
        m->in.view.shape[0] != first->in.view.shape[0] || m->out.view.shape[0] != first->out.view.shape[0])
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
        if (first->ranks && first->ranks != (int32_t)g->members)
            return hal_fail(HAL_E_INVALID, "collective %u: %s is of %d members, the group has %u", n, first->what,
                            first->ranks, g->members);
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

int remote_compile(hal_group *g, const hal_plan *const *plans, hal_buffer *const *const *buffers, hal_exec **execs) {
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

int remote_run(hal_group *g, hal_exec *const *execs, const void *block, uint64_t size) {
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
