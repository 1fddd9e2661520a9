/* driver_pool.c: the thread pool by itself: every grain once and after the phase before it, whatever threads take part,
 * sleep or come late; a device in a forked child; CPU limits read from made-up control groups.
 */
#include <stdatomic.h>
#if !defined(_WIN32)
#include <sys/stat.h>
#include <sys/wait.h>
#endif
#include <time.h>
#include <unistd.h>

#include "harness.h"
#include "device/limits.h"
#include "device/pool.h"

enum { MOST_PHASES = 60, MOST_GRAINS = 300, THREADS = 4, SPIN_US = 100 };

/* Plain cells, so that the thread sanitizer sees a phase that begins before the one before it has ended. */
typedef struct {
    uint16_t grains[MOST_PHASES];
    int phases, ended, nap;                 /* nap: the phase in which a grain takes long, or -1 */
    uint8_t runs[MOST_PHASES][MOST_GRAINS]; /* of each grain */
    int16_t seen[MOST_PHASES][MOST_GRAINS]; /* what the grain read of the phase before */
    atomic_int foreign;                     /* grains on a thread that takes no part */
    int threads;
} sheet;

static void nap_us(long us) {
    struct timespec t = {0, us * 1000};
    nanosleep(&t, NULL);
}

static void run_cell(void *context, int phase, int64_t grain, int thread) {
    sheet *s = context;
    if (phase == s->nap && grain == 0)
        nap_us(2 * SPIN_US);
    if (thread >= s->threads)
        atomic_fetch_add(&s->foreign, 1);
    s->seen[phase][grain] = phase ? s->runs[phase - 1][grain * 7 % s->grains[phase - 1]] : 1;
    s->runs[phase][grain]++;
}

static void end_phase(void *context, int phase) {
    sheet *s = context;
    s->ended += s->ended == phase;
}

static int is_complete(const sheet *s) {
    for (int i = 0; i < s->phases; i++)
        for (int g = 0; g < s->grains[i]; g++)
            if (s->runs[i][g] != 1 || s->seen[i][g] != 1)
                return 0;
    return s->ended == s->phases && s->foreign == 0;
}

static void fill_sheet(sheet *s, int round) {
    memset(s, 0, sizeof *s);
    s->phases = 1 + random_below(MOST_PHASES);
    for (int i = 0; i < s->phases; i++)
        s->grains[i] = (uint16_t)(random_below(3) ? 1 + random_below(MOST_GRAINS) : 1 + random_below(THREADS));
    s->nap = round % 16 ? -1 : random_below(s->phases);
    s->threads = 1 + random_below(THREADS);
}

static void test_jobs(int rounds) {
    pool *p = pool_open(THREADS);
    sheet *s = malloc(sizeof *s);
    pool_job job = {.grains = s->grains, .run = run_cell, .done = end_phase, .context = s};
    int complete = 0;
    for (int round = 0; round < rounds; round++) {
        fill_sheet(s, round);
        job.phases = s->phases;
        pool_run(p, &job, s->threads);
        complete += is_complete(s);
        if (round % 4 == 0) /* around the time at which threads fall asleep */
            nap_us(SPIN_US / 2 + random_below(2 * SPIN_US));
    }
    CHECK(complete == rounds, "pool: %d of %d jobs ran every grain once and in order", complete, rounds);
    free(s);
    pool_close(p);
}

static void count_grain(void *context, int64_t grain) {
    uint8_t *runs = context;
    runs[grain]++;
}

static void test_most_grains(void) {
    pool *p = pool_open(3);
    uint8_t *runs = calloc(POOL_GRAINS, 1);
    int once = 0;
    pool_share(p, POOL_GRAINS, count_grain, runs);
    pool_share(p, 1, count_grain, runs);
    for (int i = 0; i < POOL_GRAINS; i++)
        once += runs[i] == (i ? 1 : 2);
    CHECK(once == POOL_GRAINS, "pool: %d of %d grains of the largest phase ran once", once, POOL_GRAINS);
    pool_run(p, &(pool_job){.phases = 0}, 3);
    free(runs);
    pool_close(p);
}

/* Threads are ended while they start, spin and sleep, and while they wake for a job that others have done already: one
 * that is late there must not take the closing for old news and sleep on. So the last takes many rounds to be met. */
static void test_closing(int rounds) {
    uint8_t runs[8];
    for (int round = 0; round < rounds; round++) {
        pool *p = pool_open(THREADS);
        memset(runs, 0, sizeof runs);
        if (round % 4)
            nap_us(random_below(3 * SPIN_US));
        if (round % 8)
            pool_share(p, 8, count_grain, runs);
        if (round % 3 == 0)
            nap_us(random_below(2 * SPIN_US));
        CHECK(pool_threads(p) == THREADS && runs[0] == (round % 8 != 0) && !pool_forked(p), "pool: opened and closed");
        pool_close(p);
    }
}

void test_pool(int rounds) {
    test_jobs(rounds);
    test_most_grains();
    test_closing(2 * rounds);
    fprintf(stderr, "pool: done\n");
}

/* What the child finds: 0 where a run is refused with a reason and closing returns. */
#if !defined(_WIN32)
static int use_in_child(const hal_backend *b, hal_device *d, hal_exec *e) {
    int32_t counts[HAL_COUNTS] = {0};
    alarm(10);
    if (b->run(e, counts, sizeof counts) != HAL_E_INVALID || !strstr(b->error(), "child"))
        return 1;
    b->release(e);
    b->close(d);
    return 0;
}

void test_fork(const hal_backend *b) {
    hal_options options = {.threads = 3};
    hal_device *d = NULL;
    hal_exec *e = NULL;
    hal_buffer *buffers[1] = {NULL};
    builder plan;
    int32_t counts[HAL_COUNTS] = {0};
    int status = -1;
    begin_plan(&plan, 64);
    if (!CHECK(b->open(0, &options, &d) == 0 && b->alloc(d, plan.buffers, buffers) == 0 &&
                   b->compile(d, &plan.plan, buffers, &e) == 0,
               "fork: a device and a plan without steps"))
        return;
    CHECK(b->run(e, counts, sizeof counts) == 0, "fork: the plan runs before");
    pid_t child = fork();
    if (child == 0)
        _exit(use_in_child(b, d, e));
    CHECK(waitpid(child, &status, 0) == child && status == 0, "fork: a child is told, and closes: status %d", status);
    CHECK(b->run(e, counts, sizeof counts) == 0, "fork: the plan runs after");
    b->release(e);
    b->free(buffers[0]);
    b->close(d);
}

static void put(const char *root, const char *folder, const char *file, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s%s", root, folder);
    for (char *at = path + strlen(root) + 1; *folder && (at = strchr(at, '/')); at++) {
        *at = 0;
        mkdir(path, 0700);
        *at = '/';
    }
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s%s/%s", root, folder, file);
    FILE *f = fopen(path, "w");
    if (f) {
        fputs(text, f);
        fclose(f);
    }
}

typedef struct {
    const char *what, *groups;
    const char *files[3][3]; /* folder, name, text */
    int cpus;
} limit_case;

static const limit_case limit_cases[] = {
    {"no group", "", {{NULL}}, 0},
    {"no limit", "0::/a\n", {{"/a", "cpu.max", "max 100000\n"}}, 0},
    {"a CPU and a half", "0::/a\n", {{"/a", "cpu.max", "150000 100000\n"}}, 2},
    {"a tenth", "0::/\n", {{"", "cpu.max", "10000 100000\n"}}, 1},
    {"the tighter of two", "0::/a/b\n", {{"/a", "cpu.max", "300000 100000\n"}, {"/a/b", "cpu.max", "max 100000\n"}}, 3},
    {"a path of the host", "0::/host/c\n", {{"", "cpu.max", "400000 100000\n"}}, 4},
    {"version 1",
     "3:cpuset:/x\n4:cpu,cpuacct:/d\n0::/\n",
     {{"/cpu,cpuacct/d", "cpu.cfs_quota_us", "200000\n"}, {"/cpu,cpuacct/d", "cpu.cfs_period_us", "100000\n"}},
     2},
    {"version 1 without a limit",
     "1:cpu:/\n",
     {{"/cpu", "cpu.cfs_quota_us", "-1\n"}, {"/cpu", "cpu.cfs_period_us", "100000\n"}},
     0},
    {"version 1 without a period", "1:cpu:/\n", {{"/cpu", "cpu.cfs_quota_us", "100000\n"}}, 0},
    {"a period of 0", "0::/\n", {{"", "cpu.max", "100000 0\n"}}, 0},
    {"nonsense", "::::\n\n0\n0::/a\n", {{"/a", "cpu.max", "two CPUs\n"}}, 0},
    {"cpuset is not cpu", "3:cpuset:/\n", {{"/cpuset", "cpu.max", "100000 100000\n"}}, 0},
    {"a huge quota", "0::/\n", {{"", "cpu.max", "9223372036854775807 1\n"}}, 0},
};

void test_limits(void) {
    char root[] = P_tmpdir "/satchel-limits-XXXXXX", mounts[64], groups[96], command[96];
    if (!CHECK(mkdtemp(root) != NULL, "limits: a folder to test in"))
        return;
    for (size_t i = 0; i < sizeof limit_cases / sizeof *limit_cases; i++) {
        const limit_case *c = limit_cases + i;
        int cpus;
        snprintf(mounts, sizeof mounts, "%s/%zu", root, i);
        snprintf(groups, sizeof groups, "%s/groups", mounts);
        put(mounts, "", "groups", c->groups);
        for (int j = 0; j < 3 && c->files[j][0]; j++)
            put(mounts, c->files[j][0], c->files[j][1], c->files[j][2]);
        cpus = limits_quota(groups, mounts);
        CHECK(cpus == c->cpus, "limits: %s: %d CPUs, want %d", c->what, cpus, c->cpus);
    }
    CHECK(limits_quota("/no/such/file", root) == 0, "limits: no file of groups");
    CHECK(limits_default_threads() >= 1, "limits: there is a CPU");
    snprintf(command, sizeof command, "rm -r %s", root);
    CHECK(system(command) == 0, "limits: cleaned up");
}
#endif
