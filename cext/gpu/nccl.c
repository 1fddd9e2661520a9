/* nccl.c: the table of NCCL's functions, and the communicators of a group; see nccl.h.
 *
 * A member's lock is held while NCCL works on its communicator, and no call blocks: nccl_abort() sets `aborted` first, so a member
 * that polls leaves, and then gets each lock soon.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "error.h"
#include "nccl.h"
#include "os.h"

enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7, NCCL_SUM = 0 };
enum { NCCL_MAGIC = 0xcafebeef, NCCL_CONFIG_VERSION = 21700 }; /* ncclConfig_t as of 2.17, which others read */
enum { NCCL_UNSET = INT32_MIN };
enum { NCCL_POLL_NS = 20000 };

typedef void *nccl_comm;
typedef struct {
    char bytes[128];
} nccl_id;
typedef struct {
    size_t size;
    uint32_t magic, version;
    int32_t blocking, cluster, least_groups, most_groups;
    const char *network;
} nccl_config;

/* X(result, field, arguments, NCCL's name) */
#define NCCL_API(X)                                                                                                    \
    X(int, version, (int *), "ncclGetVersion")                                                                         \
    X(const char *, text, (int), "ncclGetErrorString")                                                                 \
    X(int, id, (nccl_id *), "ncclGetUniqueId")                                                                         \
    X(int, init, (nccl_comm *, int, nccl_id, int, nccl_config *), "ncclCommInitRankConfig")                            \
    X(int, state, (nccl_comm, int *), "ncclCommGetAsyncError")                                                         \
    X(int, abort, (nccl_comm), "ncclCommAbort")                                                                        \
    X(int, destroy, (nccl_comm), "ncclCommDestroy")                                                                    \
    X(int, all_reduce, (const void *, void *, size_t, int, int, nccl_comm, void *), "ncclAllReduce")                   \
    X(int, all_gather, (const void *, void *, size_t, int, nccl_comm, void *), "ncclAllGather")

typedef struct {
#define X(result, field, arguments, name) result(*field) arguments;
    NCCL_API(X)
#undef X
} nccl_api;

static const struct {
    const char *name;
    size_t at;
} names[] = {
#define X(result, field, arguments, name) {name, offsetof(nccl_api, field)},
    NCCL_API(X)
#undef X
};

typedef struct {
    pthread_mutex_t lock;
    nccl_comm comm; /* NULL: not made yet, or ended */
} nccl_member;

struct nccl_group {
    nccl_api api;
    char name[64];
    uint32_t members, timeout_ms;
    nccl_id id;
    pthread_mutex_t lock;   /* of what follows, but for the members' locks */
    pthread_cond_t changed; /* `joined` or `aborted` */
    uint32_t joined, begun; /* members that have joined; bits of those that began to */
    int aborted;
    char why[256];
    nccl_member member[HAL_MEMBERS];
};

static int fail_nccl(const nccl_group *g, int code, const char *what) {
    return hal_fail(HAL_E_DEVICE, "%s: %s: %s", g->name, what, g->api.text(code));
}

/* --- the library */

static void *open_library(const char *path) {
    const char *named = getenv("SATCHEL_NCCL");
    const char *const tried[] = {path, "libnccl.so.2"};
    void *library = NULL;
    if (named && *named) {
        library = strcmp(named, "off") == 0 ? NULL : os_library(named);
        if (!library)
            hal_fail(HAL_E_UNSUPPORTED, "NCCL is not used: SATCHEL_NCCL is %s, which cannot be opened", named);
        return library;
    }
    for (size_t i = 0; i < sizeof tried / sizeof *tried && !library; i++)
        library = tried[i] && *tried[i] ? os_library(tried[i]) : NULL;
    if (!library)
        hal_fail(HAL_E_UNSUPPORTED, "NCCL is not used: libnccl.so.2 was not found");
    return library;
}

/* Fills the table. The library stays open until the process ends, because it runs threads of its own. */
static int look_up(nccl_group *g, const char *path) {
    void *library;
    int code, version = 0;
    os_default_variable("NCCL_NVLS_ENABLE", "0"); /* NVLink multicast: groups leave it off */
    library = open_library(path);
    if (!library)
        return HAL_E_UNSUPPORTED;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *found = os_function(library, names[i].name);
        if (!found)
            return hal_fail(HAL_E_UNSUPPORTED, "NCCL is not used: the library is too old, it has no %s", names[i].name);
        *(void **)((char *)&g->api + names[i].at) = found; /* POSIX guarantees that a function pointer fits */
    }
    if ((code = g->api.version(&version)))
        return hal_fail(HAL_E_UNSUPPORTED, "NCCL is not used: %s", g->api.text(code));
    snprintf(g->name, sizeof g->name, "NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    return 0;
}

int nccl_prepare(uint32_t members, uint32_t timeout_ms, const char *path, nccl_group **out) {
    nccl_group *g;
    int code;
    if (members < 1 || members > HAL_MEMBERS)
        return hal_fail(HAL_E_INVALID, "a group has 1 to %d members, got %u", HAL_MEMBERS, members);
    g = calloc(1, sizeof *g);
    if (!g)
        return hal_fail(HAL_E_MEMORY, "no memory for a group");
    g->members = members;
    g->timeout_ms = timeout_ms;
    if ((code = look_up(g, path)) ||
        ((code = g->api.id(&g->id)) && (code = fail_nccl(g, code, "a group cannot be made")))) {
        free(g);
        return code;
    }
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    for (uint32_t i = 0; i < members; i++)
        pthread_mutex_init(&g->member[i].lock, NULL);
    *out = g;
    return 0;
}

const char *nccl_name(const nccl_group *g) {
    return g->name;
}

/* --- faults and deadlines */

static int is_aborted(nccl_group *g) {
    int aborted;
    pthread_mutex_lock(&g->lock);
    aborted = g->aborted;
    if (aborted)
        hal_fail(HAL_E_LOST, "%s", g->why);
    pthread_mutex_unlock(&g->lock);
    return aborted;
}

void nccl_abort(nccl_group *g, const char *why) {
    int first;
    pthread_mutex_lock(&g->lock);
    first = !g->aborted;
    if (first)
        snprintf(g->why, sizeof g->why, "%s", why);
    g->aborted = 1;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    if (!first)
        return;
    for (uint32_t i = 0; i < g->members; i++) {
        nccl_member *m = g->member + i;
        pthread_mutex_lock(&m->lock);
        if (m->comm)
            g->api.abort(m->comm);
        m->comm = NULL;
        pthread_mutex_unlock(&m->lock);
    }
}

static int abort_with(nccl_group *g, const char *why) {
    nccl_abort(g, why);
    return is_aborted(g) ? HAL_E_LOST : HAL_E_DEVICE; /* with the reason of the first abort as the error's text */
}

static int abort_with_code(nccl_group *g, uint32_t rank, int code, const char *what) {
    char why[sizeof g->why];
    snprintf(why, sizeof why, "%s: member %u: %s: %s", g->name, rank, what, g->api.text(code));
    return abort_with(g, why);
}

static struct timespec deadline_of(const nccl_group *g) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += g->timeout_ms / 1000;
    until.tv_nsec += (long)(g->timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    return until;
}

static int is_past(const struct timespec *until) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec > until->tv_sec || (now.tv_sec == until->tv_sec && now.tv_nsec >= until->tv_nsec);
}

/* The state of a member's communicator: NCCL's number. HAL_E_LOST, which NCCL does not use: the group was aborted. */
static int state_of(nccl_group *g, uint32_t rank) {
    nccl_member *m = g->member + rank;
    int code, state = NCCL_SUCCESS;
    pthread_mutex_lock(&m->lock);
    code = m->comm ? g->api.state(m->comm, &state) : HAL_E_LOST;
    pthread_mutex_unlock(&m->lock);
    return code ? code : state;
}

/* Waits for what NCCL goes on with in the background. code: that of the call. */
static int settle(nccl_group *g, uint32_t rank, int code, const char *what) {
    const struct timespec until = deadline_of(g), step = {0, NCCL_POLL_NS};
    char why[sizeof g->why];
    while (code == NCCL_IN_PROGRESS) {
        if (is_aborted(g))
            return HAL_E_LOST;
        if (is_past(&until)) {
            snprintf(why, sizeof why, "%s: member %u: %s did not end within %u ms", g->name, rank, what, g->timeout_ms);
            return abort_with(g, why);
        }
        nanosleep(&step, NULL);
        code = state_of(g, rank);
    }
    if (code == NCCL_SUCCESS)
        return 0;
    return code == HAL_E_LOST && is_aborted(g) ? HAL_E_LOST : abort_with_code(g, rank, code, what);
}

/* --- members */

/* Waits until all members have joined. */
static int wait_for_members(nccl_group *g) {
    const struct timespec until = deadline_of(g);
    char why[sizeof g->why];
    uint32_t missing = 0;
    int late = 0;
    pthread_mutex_lock(&g->lock);
    while (!g->aborted && g->joined < g->members && !late)
        late = pthread_cond_timedwait(&g->changed, &g->lock, &until) != 0 && is_past(&until);
    late = !g->aborted && g->joined < g->members;
    while (missing < g->members - 1 && g->begun >> missing & 1)
        missing++;
    pthread_mutex_unlock(&g->lock);
    if (!late)
        return is_aborted(g) ? HAL_E_LOST : 0;
    snprintf(why, sizeof why, "%s: member %u did not join within %u ms", g->name, missing, g->timeout_ms);
    return abort_with(g, why);
}

int nccl_join(nccl_group *g, uint32_t rank) {
    nccl_config config = {sizeof config, NCCL_MAGIC, NCCL_CONFIG_VERSION, 0, NCCL_UNSET, NCCL_UNSET, NCCL_UNSET, NULL};
    nccl_member *m = g->member + rank;
    int code;
    pthread_mutex_lock(&g->lock);
    g->begun |= 1u << rank;
    pthread_mutex_unlock(&g->lock);
    pthread_mutex_lock(&m->lock);
    if (is_aborted(g)) {
        pthread_mutex_unlock(&m->lock);
        return HAL_E_LOST;
    }
    code = g->api.init(&m->comm, (int)g->members, g->id, (int)rank, &config);
    pthread_mutex_unlock(&m->lock);
    if ((code = settle(g, rank, code, "joining")))
        return code;
    pthread_mutex_lock(&g->lock);
    g->joined++;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    return wait_for_members(g);
}

int nccl_all_reduce(nccl_group *g, uint32_t rank, uint64_t in, uint64_t out, size_t count, int type, void *stream) {
    nccl_member *m = g->member + rank;
    int code;
    pthread_mutex_lock(&m->lock);
    code = m->comm ? g->api.all_reduce((const void *)(uintptr_t)in, (void *)(uintptr_t)out, count, type, NCCL_SUM,
                                       m->comm, stream)
                   : HAL_E_LOST;
    pthread_mutex_unlock(&m->lock);
    return settle(g, rank, code, "all-reduce");
}

int nccl_all_gather(nccl_group *g, uint32_t rank, uint64_t in, uint64_t out, size_t count, int type, void *stream) {
    nccl_member *m = g->member + rank;
    int code;
    pthread_mutex_lock(&m->lock);
    code = m->comm
               ? g->api.all_gather((const void *)(uintptr_t)in, (void *)(uintptr_t)out, count, type, m->comm, stream)
               : HAL_E_LOST;
    pthread_mutex_unlock(&m->lock);
    return settle(g, rank, code, "all-gather");
}

int nccl_fault(nccl_group *g) {
    if (is_aborted(g))
        return HAL_E_LOST;
    for (uint32_t i = 0; i < g->members; i++) {
        int code = state_of(g, i);
        if (code == HAL_E_LOST && is_aborted(g))
            return HAL_E_LOST;
        if (code != NCCL_SUCCESS && code != NCCL_IN_PROGRESS && code != HAL_E_LOST)
            return abort_with_code(g, i, code, "a collective");
    }
    return 0;
}

void nccl_leave(nccl_group *g, uint32_t rank) {
    nccl_member *m = g->member + rank;
    nccl_comm comm;
    pthread_mutex_lock(&m->lock);
    comm = m->comm;
    m->comm = NULL;
    pthread_mutex_unlock(&m->lock);
    if (comm)
        g->api.destroy(comm); /* it may wait for the others' */
}

void nccl_part(nccl_group *g) {
    if (!g)
        return;
    for (uint32_t i = 0; i < g->members; i++) {
        if (g->member[i].comm)
            g->api.destroy(g->member[i].comm);
        pthread_mutex_destroy(&g->member[i].lock);
    }
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    free(g);
}
