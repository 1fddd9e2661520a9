/* peak.c: the loops that measure.c times: register-only multiply-adds of an instruction set, and sequential reads of memory.
 * Compiled once per set, with the instructions that its kernels use.
 *
 * Accumulators and operands stay in registers. HIDE is an empty asm that makes the compiler assume that a value changed, so it
 * neither hoists nor drops the computation.
 */
#include "simd/vi.h"

#include "cpu.h"

#if defined(__AVX512F__)
#define HIDE(x) __asm__ volatile("" : "+v"(x))
#elif defined(__x86_64__)
#define HIDE(x) __asm__ volatile("" : "+x"(x))
#elif defined(__aarch64__)
#define HIDE(x) __asm__ volatile("" : "+w"(x))
#else
#define HIDE(x) __asm__ volatile("" : "+m"(x))
#endif

enum {
    SUMS = 12
}; /* independent accumulators: enough to hide an instruction's latency, few enough for AVX2's registers */

#define REPEAT _Pragma("GCC unroll 12") for (int i = 0; i < SUMS; i++)

#if defined(__AMX_INT8__)
/* Four accumulator tiles, each 16 x 16, of two tiles of rows and two of columns. The
 * operands are zeros: the instruction's time does not depend on them. */
#define TILES(multiply)                                                                                                \
    for (uint64_t r = 0; r < rounds; r++) {                                                                            \
        multiply(0, 4, 6);                                                                                             \
        multiply(1, 4, 7);                                                                                             \
        multiply(2, 5, 6);                                                                                             \
        multiply(3, 5, 7);                                                                                             \
    }

static uint64_t tile_rounds(uint64_t rounds, int is_int8) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.bytes[i] = 64;
        shapes.rows[i] = 16;
    }
    /* gcc's intrinsic declares that it reads 8 bytes; this forces all of them to memory */
    __asm__ volatile("" : : "r"(&shapes) : "memory");
    _tile_loadconfig(&shapes);
    if (is_int8)
        TILES(_tile_dpbusd)
    else
        TILES(_tile_dpbf16ps)
    _tile_release();
    return rounds * 4 * 16 * 16 * (is_int8 ? 64 : 32);
}

static uint64_t int8_rounds(uint64_t rounds) {
    return tile_rounds(rounds, 1);
}
#else
static uint64_t int8_rounds(uint64_t rounds) {
    vi a = vi_set(0x01020304), b = a, sums[SUMS] = {{0}};
    for (uint64_t r = 0; r < rounds; r++)
        REPEAT {
            HIDE(a);
            sums[i] = dot4(sums[i], a, b);
        }
    REPEAT HIDE(sums[i]);
    return rounds * SUMS * LANES * 4;
}
#endif

static uint64_t f32_rounds(uint64_t rounds) {
    vf a = vf_set(0.5f), b = a, sums[SUMS];
    REPEAT sums[i] = a;
    for (uint64_t r = 0; r < rounds; r++)
        REPEAT {
            HIDE(a);
            sums[i] = vf_fma(a, b, sums[i]);
        }
    REPEAT HIDE(sums[i]);
    return rounds * SUMS * LANES;
}

#if defined(__AMX_BF16__)
static uint64_t bf16_rounds(uint64_t rounds) {
    return tile_rounds(rounds, 0);
}
#elif defined(__AVX512BF16__)
static uint64_t bf16_rounds(uint64_t rounds) {
    __m512 sums[SUMS];
    __m512i bits = _mm512_set1_epi32(0x3F003F00);
    __m512bh a = (__m512bh)bits, b = a;
    REPEAT sums[i] = _mm512_setzero_ps();
    for (uint64_t r = 0; r < rounds; r++)
        REPEAT {
            HIDE(a);
            sums[i] = _mm512_dpbf16_ps(sums[i], a, b);
        }
    REPEAT HIDE(sums[i]);
    return rounds * SUMS * 32;
}
#else
static uint64_t bf16_rounds(uint64_t rounds) {
    (void)rounds;
    return 0;
}
#endif

uint64_t CPU_NAME(cpu_multiply)(uint32_t what, uint64_t rounds) {
    return what == HAL_MEASURE_INT8   ? int8_rounds(rounds)
           : what == HAL_MEASURE_BF16 ? bf16_rounds(rounds)
           : what == HAL_MEASURE_F32  ? f32_rounds(rounds)
                                      : 0;
}

/* Reads `bytes` as `streams` parallel streams. Prefetches lines `ahead` bytes early, into all caches (near 1) or non-temporally
 * (near 0); ahead 0: no software prefetch. */
VI_INLINE void read_streams(const uint8_t *data, uint64_t bytes, int streams, int ahead, int near) {
    enum { STEP = 256, VECTORS = STEP / (4 * LANES) };
    uint64_t part = bytes / (uint64_t)streams;
    vi all[4] = {{0}};
    for (uint64_t at = 0; at < part; at += STEP)
        for (int s = 0; s < streams; s++) {
            const uint8_t *p = data + part * (uint64_t)s + at;
            for (int line = 0; line < STEP && ahead; line += 64)
                if (near)
                    __builtin_prefetch(p + ahead + line, 0, 3);
                else
                    __builtin_prefetch(p + ahead + line, 0, 0);
            for (int v = 0; v < VECTORS; v++)
                all[v % 4] |= vi_load(p + 4 * LANES * v);
        }
    for (int i = 0; i < 4; i++)
        HIDE(all[i]);
}

/* The fastest way depends on the CPU, so measure.c tries all. */
void CPU_NAME(cpu_read)(const uint8_t *data, uint64_t bytes, int way) {
    switch (way) {
    case 0:
        read_streams(data, bytes, 1, 0, 0);
        return;
    case 1:
        read_streams(data, bytes, 1, 1024, 1);
        return;
    case 2:
        read_streams(data, bytes, 1, 2048, 0);
        return;
    case 3:
        read_streams(data, bytes, 4, 0, 0);
        return;
    default:
        read_streams(data, bytes, 4, 1024, 1);
    }
}
