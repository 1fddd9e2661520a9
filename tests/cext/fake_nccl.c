/* fake_nccl.c: a libnccl.so.2 without GPUs, which checks how it is used. Buffers lie in host memory.
 *
 * A collective is computed when all ranks have called it. What breaks NCCL's contract is noted, and fake_faults() gives it: ranks
 * whose calls differ in kind, count or type; buffers outside of those that fake_buffer() made known; a stream that is not the rank's; a
 * call from another thread than the one that made the communicator; a call while its stream is captured, before the communicator
 * is ready, or after it has ended; a communicator that ends twice. fake_next() asks for a fault. After fake_any() the buffers and
 * streams are those of a device that the test does not see.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID = 4, REMOTE_ERROR = 6, IN_PROGRESS = 7 };
enum { BYTES = 1, F32 = 7, BF16 = 9, SUM = 0 };
enum { DEEP = 16, MOST_RANKS = 16, MOST_BUFFERS = 64, ALL_REDUCE = 1, ALL_GATHER = 2 };
/* Faults of fake_next(): joining never ends; a collective never ends; the n-th collective fails behind the call, or in it. */
enum { NO_FAULT, JOIN_HANGS, COLLECTIVE_HANGS, FAILS_LATER, FAILS_AT_ONCE };

typedef struct {
    char bytes[128];
} id_t128;

typedef struct {
    size_t size;
    uint32_t magic, version;
    int32_t blocking, unset[3];
    const char *network;
} config;

typedef struct {
    int kind, type;
    const void *in;
    void *out;
    size_t count;
} call;

typedef struct comm {
    int rank, ranks, state, polls; /* polls: queries that still answer "in progress" */
    int ended, hangs;
    uint64_t calls;
    pthread_t thread;
    call queue[DEEP]; /* call n at n % DEEP, until all ranks have come to it */
} comm;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    int faults, fault, fault_rank, slow, ended, made, any;
    uint64_t fault_call, computed;
    char text[4096];
    comm *comms[MOST_RANKS];
    struct {
        const char *at;
        size_t size;
    } buffers[MOST_BUFFERS];
    int n_buffers;
    void *streams[MOST_RANKS], *captured;
} is;

static void note(const char *what, int rank) {
    size_t used = strlen(is.text);
    is.faults++;
    snprintf(is.text + used, sizeof is.text - used, "rank %d: %s\n", rank, what);
}

/* --- what tests call */

void fake_reset(void) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_RANKS; i++)
        free(is.comms[i]);
    memset(&is, 0, sizeof is);
    pthread_mutex_unlock(&lock);
}

void fake_buffer(const void *at, size_t size) {
    is.buffers[is.n_buffers].at = at;
    is.buffers[is.n_buffers++].size = size;
}

void fake_stream(int rank, void *stream) {
    is.streams[rank] = stream;
}

void fake_captured(void *stream) {
    is.captured = stream;
}

/* The fault of a rank at its collective number `at`, from 0 on. */
void fake_next(int fault, int rank, uint64_t at) {
    is.fault = fault;
    is.fault_rank = rank;
    is.fault_call = at;
}

/* Joining takes so many queries, and so does the first collective. */
void fake_slow(int polls) {
    is.slow = polls;
}

void fake_any(void) {
    is.any = 1;
}

/* Collectives of a rank's communicator so far, and the numbers of the last one. */
uint64_t fake_calls(int rank, uint64_t *count) {
    const comm *c = is.comms[rank];
    uint64_t calls;
    pthread_mutex_lock(&lock);
    calls = c ? c->calls : 0;
    *count = calls ? c->queue[(calls - 1) % DEEP].count : 0;
    pthread_mutex_unlock(&lock);
    return calls;
}

int fake_faults(char *out, size_t size) {
    int found;
    pthread_mutex_lock(&lock);
    snprintf(out, size, "%s", is.text);
    found = is.faults;
    pthread_mutex_unlock(&lock);
    return found;
}

/* Communicators that were made, less those that ended. */
int fake_open(void) {
    return is.made - is.ended;
}

/* --- the contract */

static size_t size_of(int type) {
    return type == F32 ? 4 : type == BF16 ? 2 : 1;
}

static int is_known(const void *at, size_t size) {
    const char *from = at;
    if (is.any)
        return at != NULL;
    for (int i = 0; i < is.n_buffers; i++)
        if (from >= is.buffers[i].at && from + size <= is.buffers[i].at + is.buffers[i].size)
            return 1;
    return 0;
}

static float get(const void *at, size_t i, int type) {
    uint32_t bits;
    float value;
    if (type == F32)
        return ((const float *)at)[i];
    bits = (uint32_t)((const uint16_t *)at)[i] << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void put(void *at, size_t i, int type, float value) {
    uint32_t bits;
    if (type == F32) {
        ((float *)at)[i] = value;
        return;
    }
    memcpy(&bits, &value, sizeof bits);
    ((uint16_t *)at)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* A collective to which all ranks have come. The outputs are written from a copy, for in and out may be the same. */
static void compute(int ranks, uint64_t number) {
    const call *first = &is.comms[0]->queue[number % DEEP];
    size_t each = size_of(first->type) * first->count;
    char *result = calloc(first->kind == ALL_GATHER ? (size_t)ranks : 1, each);
    for (int r = 0; r < ranks && first->kind == ALL_GATHER; r++)
        memcpy(result + each * (size_t)r, is.comms[r]->queue[number % DEEP].in, each);
    for (size_t i = 0; i < first->count && first->kind == ALL_REDUCE; i++) {
        float sum = 0;
        for (int r = 0; r < ranks; r++)
            sum += get(is.comms[r]->queue[number % DEEP].in, i, first->type);
        put(result, i, first->type, sum);
    }
    for (int r = 0; r < ranks; r++)
        memcpy(is.comms[r]->queue[number % DEEP].out, result, first->kind == ALL_GATHER ? each * (size_t)ranks : each);
    free(result);
    is.computed = number + 1;
}

/* A rank came to its call `number`. */
static void meet(const comm *c, uint64_t number) {
    const call *mine = &c->queue[number % DEEP];
    int come = 0;
    for (int r = 0; r < c->ranks; r++) {
        const comm *other = is.comms[r];
        const call *its = other && other->calls > number ? &other->queue[number % DEEP] : NULL;
        come += its != NULL;
        if (its && (its->kind != mine->kind || its->count != mine->count || its->type != mine->type)) {
            note("its collective differs from that of another rank", c->rank);
            return;
        }
    }
    if (come == c->ranks)
        compute(c->ranks, number);
}

static int collective(comm *c, call made, void *stream) {
    size_t in = size_of(made.type) * made.count, out = made.kind == ALL_GATHER ? in * (size_t)c->ranks : in;
    int code = SUCCESS;
    pthread_mutex_lock(&lock);
    if (c->ended)
        note("a collective on a communicator that has ended", c->rank);
    else if (c->polls)
        note("a collective before the communicator is ready", c->rank);
    else if (!pthread_equal(c->thread, pthread_self()))
        note("a collective from another thread than the communicator's", c->rank);
    else if (is.any ? !stream : is.streams[c->rank] != stream)
        note("a collective on another stream than the rank's", c->rank);
    else if (is.captured == stream)
        note("a collective while its stream is captured", c->rank);
    else if (!is_known(made.in, in) || !is_known(made.out, out))
        note("a buffer is smaller than the collective", c->rank);
    else if (c->calls - is.computed == DEEP)
        note("more collectives are queued than this library holds", c->rank);
    else {
        int due = is.fault_rank == c->rank && is.fault_call == c->calls;
        uint64_t number = c->calls++;
        c->queue[number % DEEP] = made;
        if (due && is.fault == FAILS_AT_ONCE)
            code = SYSTEM_ERROR;
        else if (due && is.fault == FAILS_LATER)
            c->state = REMOTE_ERROR;
        else if (due && is.fault == COLLECTIVE_HANGS)
            c->hangs = 1, code = IN_PROGRESS;
        else {
            meet(c, number);
            if (number == 0 && is.slow)
                c->polls = is.slow, code = IN_PROGRESS;
        }
        pthread_mutex_unlock(&lock);
        return code;
    }
    pthread_mutex_unlock(&lock);
    return INVALID;
}

static int end(comm *c, const char *twice) {
    pthread_mutex_lock(&lock);
    if (c->ended)
        note(twice, c->rank);
    is.ended += !c->ended;
    c->ended = 1;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

/* --- NCCL's functions */

int ncclGetVersion(int *out) {
    *out = 22705;
    return SUCCESS;
}

const char *ncclGetErrorString(int code) {
    return code == SYSTEM_ERROR ? "unhandled system error" : code == REMOTE_ERROR ? "remote process exited" : "invalid";
}

int ncclGetUniqueId(id_t128 *out) {
    memset(out, 7, sizeof *out);
    return SUCCESS;
}

int ncclCommInitRankConfig(comm **out, int ranks, id_t128 id, int rank, const config *how) {
    comm *c = calloc(1, sizeof *c);
    *out = c;
    pthread_mutex_lock(&lock);
    if (how->size < sizeof *how || how->magic != 0xcafebeef || how->version < 21400)
        note("a configuration that is none", rank);
    for (int i = 0; i < 3; i++)
        if (how->unset[i] != INT32_MIN)
            note("a configuration with a number that is not set", rank);
    if (how->blocking)
        note("a communicator that blocks: its calls have no deadline", rank);
    if (id.bytes[0] != 7 || rank >= ranks || is.comms[rank])
        note("a rank that is taken, or another group's id", rank);
    *c = (comm){.rank = rank, .ranks = ranks, .thread = pthread_self(), .polls = 1 + is.slow};
    c->hangs = is.fault == JOIN_HANGS && is.fault_rank == rank;
    is.comms[rank] = c;
    is.made++;
    pthread_mutex_unlock(&lock);
    return IN_PROGRESS;
}

/* A rank has joined when all have come. */
int ncclCommGetAsyncError(comm *c, int *state) {
    int come = 0;
    pthread_mutex_lock(&lock);
    if (c->ended)
        note("the state of a communicator that has ended", c->rank);
    for (int r = 0; r < c->ranks; r++)
        come += is.comms[r] != NULL;
    if (come == c->ranks && !c->hangs && c->polls)
        c->polls--;
    *state = c->hangs || c->polls ? IN_PROGRESS : c->state;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int ncclCommAbort(comm *c) {
    return end(c, "aborted after it has ended");
}

int ncclCommDestroy(comm *c) {
    return end(c, "destroyed after it has ended");
}

int ncclAllReduce(const void *in, void *out, size_t count, int type, int how, comm *c, void *stream) {
    if (how != SUM)
        note("another reduction than the sum", c->rank);
    return collective(c, (call){ALL_REDUCE, type, in, out, count}, stream);
}

int ncclAllGather(const void *in, void *out, size_t count, int type, comm *c, void *stream) {
    return collective(c, (call){ALL_GATHER, type, in, out, count}, stream);
}
