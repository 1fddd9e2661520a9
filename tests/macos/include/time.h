/* time.h: what our sources use of macOS's header, declared as POSIX and C say, to compile them where there is no macOS. */
#pragma once
typedef long time_t;
struct timespec {
    time_t tv_sec;
    long tv_nsec;
};
typedef int clockid_t;
#define CLOCK_MONOTONIC 6
#define CLOCK_THREAD_CPUTIME_ID 16
int clock_gettime(clockid_t, struct timespec *);
int nanosleep(const struct timespec *, struct timespec *);
