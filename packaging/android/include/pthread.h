/* pthread.h: threads of Android's C library (64-bit), with the sizes that its types have. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <time.h>
typedef long pthread_t, pthread_condattr_t, pthread_mutexattr_t;
typedef struct {
    int32_t room[10];
} pthread_mutex_t;
typedef struct {
    int32_t room[12];
} pthread_cond_t;
typedef struct {
    uint32_t flags;
    void *stack_base;
    size_t stack_size, guard_size;
    int32_t policy, priority;
    char room[16];
} pthread_attr_t;
#define PTHREAD_MUTEX_INITIALIZER {{0}}
int pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int pthread_join(pthread_t, void **);
int pthread_mutex_init(pthread_mutex_t *, const pthread_mutexattr_t *);
int pthread_mutex_lock(pthread_mutex_t *);
int pthread_mutex_unlock(pthread_mutex_t *);
int pthread_mutex_destroy(pthread_mutex_t *);
int pthread_condattr_init(pthread_condattr_t *);
int pthread_condattr_setclock(pthread_condattr_t *, clockid_t);
int pthread_condattr_destroy(pthread_condattr_t *);
int pthread_cond_init(pthread_cond_t *, const pthread_condattr_t *);
int pthread_cond_wait(pthread_cond_t *, pthread_mutex_t *);
int pthread_cond_timedwait(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
int pthread_cond_signal(pthread_cond_t *);
int pthread_cond_broadcast(pthread_cond_t *);
int pthread_cond_destroy(pthread_cond_t *);
