/* signal.h: signals of Android's C library (64-bit). Its sigaction begins with the flags, unlike glibc's. */
#pragma once
#define SIGBUS 7
#define SA_SIGINFO 0x00000004
#define SA_ONSTACK 0x08000000
#define SIG_DFL ((void (*)(int))0)
#define SIG_IGN ((void (*)(int))1)
#define SIG_ERR ((void (*)(int)) - 1)
typedef struct {
    unsigned long bits;
} sigset_t;
typedef struct {
    int si_signo, si_errno, si_code, pad;
    void *si_addr; /* of a fault */
    char room[104];
} siginfo_t;
struct sigaction {
    int sa_flags;
    union {
        void (*sa_handler)(int);
        void (*sa_sigaction)(int, siginfo_t *, void *);
    };
    sigset_t sa_mask;
    void (*sa_restorer)(void);
};
int sigemptyset(sigset_t *);
int sigaction(int, const struct sigaction *, struct sigaction *);
void (*signal(int, void (*)(int)))(int);
