/* driver.c: the C test program: every op on the cpu, remote and null backends, without Python.
 *
 *     satchel_cext_test [--threads] [--short] [--without NAME,...]
 *
 * Prints what failed, then "N passed, M failed"; exit status 1 where anything failed. --threads leaves out what has one
 * thread, and what is no fair game for the thread sanitizer; --short repeats less, for a CPU that is emulated, and tests of
 * a set that shares its base's objects only what is compiled for it; --without leaves out kernel sets, and the backends
 * remote and null.
 */
#include "harness.h"

static struct {
    int threads, brief;
    const char *without;
} asked;

/* base: the set whose objects it shares (cext/cpu/CMakeLists.txt); floats: of the products, those of floats are its own. */
typedef struct {
    const char *name, *base;
    int floats;
} kernel_set;

static const kernel_set sets[] = {
    {"scalar"},        {"avx2"}, {"avxvnni", "avx2"}, {"avx512"},      {"avx512bf16", "avx512", 1},
    {"amx", "avx512"}, {"neon"}, {"dotprod", "neon"}, {"i8mm", "neon"}};

static int is_left_out(const char *name) {
    size_t length = strlen(name);
    for (const char *at = asked.without; at && *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == length && memcmp(at, name, length) == 0)
            return 1;
    return 0;
}

/* How often what is repeated `whole` times is repeated in this run. */
static int repeats(int whole) {
    return asked.brief ? whole / 20 : whole;
}

/* The kernels that a device is to be opened with; "": the best. */
static void choose_set(const char *name) {
#if defined(_WIN32)
    _putenv_s("SATCHEL_CPU", name);
#else
    setenv("SATCHEL_CPU", name, 1);
#endif
}

static int open_target(target *t, const hal_backend *b, const char *set, int threads) {
    hal_options options = {.threads = threads};
    hal_info info;
    choose_set(set);
    *t = (target){.b = b, .computes = b != null_backend()};
    if (b->hash != HAL_ABI_HASH || b->open(0, &options, &t->device) != 0)
        return 0;
    b->info(t->device, &info);
    snprintf(t->name, sizeof t->name, "%s/%.24s/%d threads", b->name, info.variant, threads);
    return 1;
}

/* Whether this library and this CPU have the set. */
static int has_set(const char *set) {
    target t;
    int open = open_target(&t, cpu_backend(), set, 1);
    if (open)
        t.b->close(t.device);
    return open;
}

static void test_buffers(const target *t) {
    uint8_t wrote[100], got[100];
    hal_bufdesc desc = {.size = 100, .usage = HAL_STATE};
    hal_buffer *b = NULL;
    hal_info before, after;
    memset(wrote, 7, sizeof wrote);
    t->b->info(t->device, &before);
    CHECK(t->b->alloc(t->device, &desc, &b) == 0, "%s: alloc", t->name);
    t->b->info(t->device, &after);
    CHECK(after.allocations == before.allocations + 1, "%s: allocations are counted", t->name);
    CHECK(t->b->read(b, 0, got, 100) == 0 && got[0] == 0 && got[99] == 0, "%s: a state starts as zeros", t->name);
    CHECK(t->b->write(b, 10, wrote, 90) == 0 && t->b->read(b, 9, got, 2) == 0 && got[0] == 0 && got[1] == 7,
          "%s: what is written is read", t->name);
    CHECK(t->b->write(b, 11, wrote, 90) == HAL_E_INVALID, "%s: a write past the end is refused", t->name);
    CHECK(t->b->read(b, UINT64_MAX, got, 2) == HAL_E_INVALID, "%s: a read past the end is refused", t->name);
    CHECK(t->b->error()[0] != 0, "%s: and says why", t->name);
    t->b->free(b);
    desc.size = UINT64_MAX - 8;
    CHECK(t->b->alloc(t->device, &desc, &b) == HAL_E_MEMORY, "%s: too much is refused", t->name);
}

/* Sizes that 64 bits do not hold are refused, not wrapped: neither a division by what became 0 nor a write past the end. */
static void test_sizes(const target *t) {
    static const int64_t edges[] = {INT64_MIN,
                                    -1,
                                    0,
                                    1,
                                    16,
                                    256,
                                    1 << 20,
                                    INT32_MAX,
                                    (int64_t)1 << 32,
                                    (int64_t)1 << 58,
                                    (int64_t)1 << 59,
                                    (int64_t)1 << 62,
                                    INT64_MAX - 255,
                                    INT64_MAX};
    enum { EDGES = sizeof edges / sizeof *edges, ROOM = 1 << 16 };
    hal_bufdesc desc = {.size = ROOM, .usage = HAL_WEIGHT};
    uint8_t *from = calloc(1, ROOM);
    hal_buffer *b = NULL;
    if (!t->b->packed || t->b->alloc(t->device, &desc, &b)) {
        free(from);
        return;
    }
    for (int i = 0; i < repeats(60000); i++) {
        uint32_t format = (uint32_t)random_below(45);
        int64_t stack = random_below(3) ? 1 : edges[random_below(EDGES)], rows = edges[random_below(EDGES)];
        int64_t columns = edges[random_below(EDGES)];
        uint64_t offset = random_below(4) ? 0 : UINT64_MAX - (uint64_t)random_below(200);
        uint64_t size = t->b->packed(t->device, format, stack, rows, columns);
        double least = (double)stack * (double)rows * (double)columns / 8;
        int positive = stack > 0 && rows > 0 && columns > 0;
        CHECK(!size || (positive && (double)size >= least / 2),
              "%s: format %u of %lld x %lld x %lld packs in %llu bytes", t->name, format, (long long)stack,
              (long long)rows, (long long)columns, (unsigned long long)size);
        if (!size || size > ROOM || offset) /* else it reads as much as the file has */
            CHECK(t->b->pack(b, offset, format, stack, rows, columns, from) < 0 && t->b->error()[0],
                  "%s: format %u of %lld x %lld x %lld is packed at %llu", t->name, format, (long long)stack,
                  (long long)rows, (long long)columns, (unsigned long long)offset);
    }
    t->b->free(b);
    free(from);
}

/* A rate is above zero; what a backend lacks it refuses, and it says why. */
static void test_measure(const target *t) {
    for (uint32_t what = HAL_MEASURE_READ; what <= HAL_MEASURE_F32 + 1 && t->b->measure; what++) {
        double rate = -1;
        int code = t->b->measure(t->device, what, 100000, &rate);
        int missing = what == HAL_MEASURE_BF16 || what > HAL_MEASURE_F32;
        CHECK(code == 0 ? rate > 0 : missing && code == HAL_E_UNSUPPORTED && t->b->error()[0],
              "%s: measure %u gives %d, %g", t->name, what, code, rate);
    }
}

static void test_device_options(void) {
    const hal_backend *b = cpu_backend();
    hal_device *d;
    hal_options many = {.threads = 1 << 20}, negative = {.threads = -1}, decode = {.threads_decode = 1 << 20};
    CHECK(b->open(1, NULL, &d) == HAL_E_INVALID, "there is one CPU device");
    CHECK(b->open(0, &many, &d) == HAL_E_INVALID, "a million threads are refused");
    CHECK(b->open(0, &negative, &d) == HAL_E_INVALID, "-1 threads are refused");
    CHECK(b->open(0, &decode, &d) == HAL_E_INVALID, "nor for decoding");
    choose_set("none");
    CHECK(b->open(0, NULL, &d) == HAL_E_UNSUPPORTED, "an unknown kernel set is refused");
    choose_set("");
}

/* set: NULL: the best one. */
static void test_target(const hal_backend *b, const kernel_set *set, int threads) {
    target t;
    int shares = asked.brief && set && set->base && has_set(set->base); /* the rest is tested with its base */
    if (!open_target(&t, b, set ? set->name : "", threads)) {
        fprintf(stderr, "skipped: %s with %s kernels: %s\n", b->name, set ? set->name : "the best", b->error());
        return;
    }
    if (!asked.threads)
        test_measure(&t);
    test_ops(&t);
    if (set)
        test_products(&t, shares && set->floats, asked.brief);
    if (!shares) {
        test_buffers(&t);
        test_sizes(&t);
        test_sample(&t);
        test_recurrent(&t);
        if (t.computes) {
            test_wrong_plans(&t);
            if (!asked.threads) /* a damaged plan may write what it reads at the same time */
                test_damaged_plans(&t, repeats(b == remote_backend() ? 200 : 2000));
        }
        test_many_runs(&t, repeats(b == remote_backend() ? 100 : 1000));
    }
    b->close(t.device);
    fprintf(stderr, "%s: done\n", t.name);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        asked.threads |= strcmp(argv[i], "--threads") == 0;
        asked.brief |= strcmp(argv[i], "--short") == 0;
        if (strcmp(argv[i], "--without") == 0)
            asked.without = argv[i + 1]; /* after the last argument stands NULL */
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* so that what is stopped has told what it found */
    test_device_options();
    test_fused(repeats(200000));
    test_cuts();
    test_pool(asked.threads ? 1000 : repeats(3000));
#if !defined(_WIN32)      /* it has no fork, and no control groups */
    if (!asked.threads) { /* the thread sanitizer takes no fork of a program with threads */
        test_fork(cpu_backend());
        test_limits();
    }
#endif
    for (size_t i = 0; i < sizeof sets / sizeof *sets && !asked.threads; i++) {
        if (is_left_out(sets[i].name))
            continue;
        test_searches(sets[i].name);
        test_target(cpu_backend(), &sets[i], i % 2 ? 2 : 1);
    }
    test_target(cpu_backend(), NULL, 3); /* more threads than most test machines have CPUs to spare */
    if (!is_left_out("remote"))
        test_target(remote_backend(), NULL, 2);
    if (!is_left_out("null"))
        test_target(null_backend(), NULL, 1);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
