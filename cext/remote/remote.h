/* remote.h: the handles of the test backend, shared by its sources. */
#ifndef SATCHEL_REMOTE_H
#define SATCHEL_REMOTE_H

#include <pthread.h>

#include "error.h"
#include "meet.h"

const hal_backend *cpu_backend(void);

enum { DEEP = 4, PIECE = 1 << 16 };

struct hal_device {
    hal_device *cpu;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    hal_exec *queue[DEEP]; /* run n at n % DEEP */
    uint64_t last, done;   /* numbers of runs */
    int stop, index, late_us;
    uint64_t lost;  /* number of the run at which the device is lost; 0: never */
    int refuses;    /* compile() fails */
    int unlike;     /* it has another name than the others */
    int unread;     /* what other members write to it does not read back */
    uint32_t drift; /* the collective of each run whose result is wrong here; 0: none */
    int log;        /* -1: none */
    char hold[512];
    uint8_t poison[PIECE];
};

struct hal_buffer {
    hal_device *device;
    hal_buffer *cpu;
    uint64_t size, run; /* the last run with it; 0: none, or they are not noted */
};

/* A view of rows of float32, or of int32 for `first`, in a buffer of the CPU backend. */
typedef struct {
    hal_buffer *cpu;
    hal_view view;
    uint64_t columns;
} meeting_view;

struct hal_group {
    uint32_t members, timeout_ms, link, unread; /* the last two: as of hal_group_info */
    hal_device *devices[HAL_MEMBERS];
    meet *meet;
    uint64_t meetings; /* of all queued runs */
    pthread_mutex_t lock;
};

/* What a member brings to a collective. */
typedef struct {
    float *rows;
    uint64_t columns;
} brought;

/* A collective of a plan. */
typedef struct {
    int op;                      /* HAL_OP_ value */
    char what[48];               /* for errors */
    meeting_view out, in, rest;  /* rest.cpu NULL: there is no residual */
    arg_gather_columns place;    /* of gather_columns */
    int32_t ranks;               /* of reduce_scatter and all_gather */
    brought brought[2];          /* by the parity of the meeting: others read it until this member comes to the next */
    float *result, *kept, *came; /* a row, one of rest, and one of a member */
} meeting;

/* Steps of a plan up to a collective, and the collective. */
typedef struct {
    hal_exec *cpu;    /* NULL: no step stands before the collective */
    meeting *meeting; /* NULL: the last part ends with the plan */
    uint32_t steps;   /* those of `cpu`; the collective follows them */
    uint64_t ns;      /* that the collective took so far, waiting included */
} exec_part;

struct hal_exec {
    hal_device *device;
    uint64_t size, room; /* bytes of the queued step block, and its capacity */
    uint64_t run;        /* its last one; 0: none */
    int code;            /* result of the last run */
    char why[512];
    uint32_t n_poisoned, n_parts, n_meetings;
    hal_buffer **poisoned;
    exec_part *parts;
    uint8_t *block;
    hal_group *group; /* NULL: none */
    uint32_t rank;
    uint64_t first; /* number of the queued run's first meeting */
};

/* Of parts.c. 1 if a step is a collective that this backend can compute, 0 if it is no collective, else a HAL_E_ code. */
int supports_meeting(const hal_plan *, uint32_t step);
/* Fills the exec's parts. cpu: the buffers of the CPU backend. */
int build_parts(hal_exec *, const hal_plan *, hal_buffer **cpu);
void free_parts(hal_exec *);
/* Runs all parts; the code, with the reason in `why`. */
int run_parts(hal_exec *);
/* As times() of hal.h; the device was opened with HAL_PROFILE. */
int times_of_parts(hal_exec *, uint64_t *ns, uint32_t n_steps);
/* A member writes to another one's memory, or to its own: it may get lost on the way, as SATCHEL_REMOTE_UNREAD says. */
void peer_copy(const hal_device *to, int own, void *at, const void *from, size_t size);
/* Breaks the exec's group, if it is in one, because its device is lost. */
void leave_group(hal_exec *);

/* Of exec.c. */
#define EVERY UINT64_MAX         /* number of the last run of the device */
void *remote_work(void *device); /* a device's thread */
/* Waits until a run is done; the device's lock is held on return. 0, or HAL_E_TIMEOUT. */
int lock_done(hal_device *, uint64_t run, uint32_t timeout_ms);
void wait_idle(hal_device *);
void fill_poison(hal_buffer *);
int build_exec(hal_device *, const hal_plan *, hal_buffer *const *, hal_exec *);
void release_exec(hal_exec *);
/* Queues a run; the group's timeout bounds the wait for the run before it. */
int queue_run(hal_exec *, const void *block, uint64_t size, uint64_t first, uint32_t timeout_ms);

/* Of group.c. */
int remote_join(hal_device *const *, uint32_t n, const hal_group_options *, hal_group **);
void remote_part(hal_group *);
void remote_info(hal_group *, hal_group_info *);
int remote_compile(hal_group *, const hal_plan *const *, hal_buffer *const *const *, hal_exec **);
int remote_run(hal_group *, hal_exec *const *, const void *block, uint64_t size);

#endif
