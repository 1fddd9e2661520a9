/* pthread.h: what our sources use of macOS's header, declared as POSIX and C say, to compile them where there is no macOS. */
#pragma once
#include <stddef.h>
typedef struct thread *pthread_t;
typedef struct {
    long room[8];
} pthread_mutex_t, pthread_cond_t;
#define PTHREAD_MUTEX_INITIALIZER {{0}}
int pthread_create(pthread_t *, const void *, void *(*)(void *), void *);
int pthread_join(pthread_t, void **);
int pthread_mutex_init(pthread_mutex_t *, const void *);
int pthread_mutex_lock(pthread_mutex_t *);
int pthread_mutex_unlock(pthread_mutex_t *);
int pthread_mutex_destroy(pthread_mutex_t *);
int pthread_cond_init(pthread_cond_t *, const void *);
int pthread_cond_wait(pthread_cond_t *, pthread_mutex_t *);
int pthread_cond_signal(pthread_cond_t *);
int pthread_cond_broadcast(pthread_cond_t *);
int pthread_cond_destroy(pthread_cond_t *);
