/* meet.c: meetings of a group's members on the host; see meet.h. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "meet.h"

/* The clock of deadlines. macOS cannot set a condition's clock: there it is the time of day. */
#ifdef __APPLE__
#define DEADLINE_CLOCK CLOCK_REALTIME
#else
#define DEADLINE_CLOCK CLOCK_MONOTONIC
#endif

struct meet {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t members, timeout_ms;
    uint64_t come[HAL_MEMBERS]; /* the last meeting that each member came to */
    /* What it brought, by the parity of the meeting: a member may come to the next one while others still read this one's. */
    const void *brought[2][HAL_MEMBERS];
    double waited[HAL_MEMBERS];
    int missing; /* -1: the group is whole */
    char why[256];
};

meet *meet_new(uint32_t members, uint32_t timeout_ms) {
    meet *m = calloc(1, sizeof *m);
    pthread_condattr_t attributes;
    if (!m)
        return NULL;
    m->members = members;
    m->timeout_ms = timeout_ms;
    m->missing = -1;
    pthread_mutex_init(&m->lock, NULL);
    pthread_condattr_init(&attributes);
#ifndef __APPLE__
    pthread_condattr_setclock(&attributes, DEADLINE_CLOCK);
#endif
    pthread_cond_init(&m->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    return m;
}

void meet_free(meet *m) {
    if (!m)
        return;
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

static void break_locked(meet *m, uint32_t rank, const char *why) {
    if (m->missing >= 0)
        return;
    m->missing = (int)rank;
    snprintf(m->why, sizeof m->why, "%s", why);
    pthread_cond_broadcast(&m->changed);
}

void meet_break(meet *m, uint32_t rank, const char *why) {
    pthread_mutex_lock(&m->lock);
    break_locked(m, rank, why);
    pthread_mutex_unlock(&m->lock);
}

int meet_why(meet *m, char *why, size_t size) {
    int broken;
    pthread_mutex_lock(&m->lock);
    broken = m->missing >= 0;
    if (broken)
        snprintf(why, size, "%s", m->why);
    pthread_mutex_unlock(&m->lock);
    return broken;
}

/* The first member that has not come to a meeting; `members` if all have. */
static uint32_t first_missing(const meet *m, uint64_t number) {
    uint32_t rank = 0;
    while (rank < m->members && m->come[rank] >= number)
        rank++;
    return rank;
}

static double seconds_since(const struct timespec *then) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - then->tv_sec) + 1e-9 * (double)(now.tv_nsec - then->tv_nsec);
}

/* Waits until all have come or the group is broken. */
static void wait_for_all(meet *m, uint64_t number, const char *what) {
    struct timespec until;
    char why[sizeof m->why];
    uint32_t rank;
    clock_gettime(DEADLINE_CLOCK, &until);
    until.tv_sec += m->timeout_ms / 1000;
    until.tv_nsec += (long)(m->timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    while (m->missing < 0 && (rank = first_missing(m, number)) < m->members) {
        if (pthread_cond_timedwait(&m->changed, &m->lock, &until) != ETIMEDOUT ||
            (rank = first_missing(m, number)) == m->members)
            continue;
        snprintf(why, sizeof why, "member %u did not come to %s within %u ms", rank, what, m->timeout_ms);
        break_locked(m, rank, why);
    }
}

int meet_come(meet *m, uint32_t rank, uint64_t number, const char *what, const void *brought, const void **all) {
    struct timespec began;
    int broken;
    clock_gettime(CLOCK_MONOTONIC, &began);
    pthread_mutex_lock(&m->lock);
    m->brought[number & 1][rank] = brought;
    m->come[rank] = number;
    pthread_cond_broadcast(&m->changed);
    wait_for_all(m, number, what);
    m->waited[rank] += seconds_since(&began);
    broken = m->missing >= 0;
    for (uint32_t i = 0; i < m->members; i++)
        all[i] = m->brought[number & 1][i];
    pthread_mutex_unlock(&m->lock);
    return broken ? HAL_E_LOST : 0;
}

void meet_info(meet *m, hal_group_info *out) {
    pthread_mutex_lock(&m->lock);
    out->members = m->members;
    out->missing = m->missing;
    out->meetings = m->come[0];
    for (uint32_t i = 0; i < m->members; i++) {
        out->waited[i] = m->waited[i];
        out->meetings = m->come[i] < out->meetings ? m->come[i] : out->meetings;
    }
    pthread_mutex_unlock(&m->lock);
}
