/* launchers.c: threads that start the runs of a group's members; see launchers.h. */
#include "launchers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { LOOKING_NS = 50000 };

typedef struct {
    launchers *all;
    uint32_t member;
    pthread_t thread;
    int started;
} launcher;

struct launchers {
    pthread_mutex_t lock;
    pthread_cond_t turned, ended;
    atomic_uint turn, left; /* turns so far; members that have not ended theirs */
    atomic_int closing;
    uint32_t members;
    launcher_turn run;
    void *of;
    launcher each[];
};

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Looks for a while, or until *what is no longer `old`. */
static void look(const atomic_uint *what, unsigned old) {
    uint64_t until = now_ns() + LOOKING_NS;
    while (atomic_load(what) == old && now_ns() < until)
        ;
}

static void *work(void *of) {
    launcher *own = of;
    launchers *l = own->all;
    for (unsigned seen = 0;;) {
        look(&l->turn, seen);
        pthread_mutex_lock(&l->lock);
        while (atomic_load(&l->turn) == seen)
            pthread_cond_wait(&l->turned, &l->lock);
        pthread_mutex_unlock(&l->lock);
        seen = atomic_load(&l->turn);
        if (atomic_load(&l->closing))
            return NULL;
        l->run(l->of, own->member);
        if (atomic_fetch_sub(&l->left, 1) == 1) {
            pthread_mutex_lock(&l->lock);
            pthread_cond_signal(&l->ended);
            pthread_mutex_unlock(&l->lock);
        }
    }
}

static void give_turn(launchers *l) {
    pthread_mutex_lock(&l->lock);
    atomic_store(&l->left, l->members - 1);
    atomic_fetch_add(&l->turn, 1);
    pthread_cond_broadcast(&l->turned);
    pthread_mutex_unlock(&l->lock);
}

void launch_all(launchers *l) {
    unsigned left;
    give_turn(l);
    l->run(l->of, 0);
    if ((left = atomic_load(&l->left)))
        look(&l->left, left);
    pthread_mutex_lock(&l->lock);
    while (atomic_load(&l->left))
        pthread_cond_wait(&l->ended, &l->lock);
    pthread_mutex_unlock(&l->lock);
}

launchers *launchers_new(uint32_t members, launcher_turn run, void *of) {
    launchers *l = calloc(1, sizeof *l + members * sizeof *l->each);
    int failed = 0;
    if (!l)
        return NULL;
    l->members = members;
    l->run = run;
    l->of = of;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->turned, NULL);
    pthread_cond_init(&l->ended, NULL);
    for (uint32_t i = 1; i < members && !failed; i++) {
        l->each[i] = (launcher){.all = l, .member = i};
        failed = pthread_create(&l->each[i].thread, NULL, work, l->each + i);
        l->each[i].started = !failed;
    }
    if (!failed)
        return l;
    launchers_free(l);
    return NULL;
}

void launchers_free(launchers *l) {
    if (!l)
        return;
    atomic_store(&l->closing, 1);
    give_turn(l);
    for (uint32_t i = 1; i < l->members; i++)
        if (l->each[i].started)
            pthread_join(l->each[i].thread, NULL);
    pthread_cond_destroy(&l->ended);
    pthread_cond_destroy(&l->turned);
    pthread_mutex_destroy(&l->lock);
    free(l);
}
