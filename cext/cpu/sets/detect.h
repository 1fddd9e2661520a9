/* detect.h: CPU feature detection: runs_<set>() tells whether CPU and system support an instruction set of CMakeLists.txt. A
 * library calls those of the sets that it has; inline, because compilers warn of an unused function otherwise.
 */
#ifndef SATCHEL_CPU_DETECT_H
#define SATCHEL_CPU_DETECT_H

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__) && defined(_WIN32)
#include <windows.h>
#endif

static inline int runs_baseline(void) {
    return 1;
}

#if defined(__x86_64__)
/* Registers of CPUID's answer, and bits of them (Intel's Software Developer's Manual, volume 2, CPUID). A compiler's
 * __builtin_cpu_supports() is not asked: in libraries that zig builds it denies everything. */
enum { CPUID_A, CPUID_B, CPUID_C, CPUID_D };

static inline int cpuid_has(unsigned leaf, unsigned sub, int in, unsigned bits) {
    unsigned r[4] = {0};
    return __get_cpuid_count(leaf, sub, r, r + 1, r + 2, r + 3) && (r[in] & bits) == bits;
}

/* Whether the system saves these registers when it switches threads: bits of XCR0. */
static inline int system_saves(unsigned bits) {
    unsigned low, high;
    if (!cpuid_has(1, 0, CPUID_C, 1u << 27 /* OSXSAVE */))
        return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & bits) == bits;
}

static inline int runs_avx2(void) {
    enum { FMA = 1 << 12, AVX = 1 << 28, F16C = 1 << 29, AVX2 = 1 << 5, SSE_AND_AVX = 6 };
    return system_saves(SSE_AND_AVX) && cpuid_has(1, 0, CPUID_C, FMA | AVX | F16C) && cpuid_has(7, 0, CPUID_B, AVX2);
}

static inline int runs_avx512(void) {
    enum { F = 1 << 16, DQ = 1 << 17, BW = 1 << 30, VNNI = 1 << 11, MASKS_AND_512 = 0xE0 };
#if !defined(__APPLE__) /* macOS adds these registers to a thread when it first uses them */
    if (!system_saves(MASKS_AND_512))
        return 0;
#endif
    return runs_avx2() && cpuid_has(7, 0, CPUID_B, F | DQ | BW | 1u << 31 /* VL */) && cpuid_has(7, 0, CPUID_C, VNNI);
}

static inline int runs_avxvnni(void) {
    return runs_avx2() && cpuid_has(7, 1, CPUID_A, 1 << 4);
}

static inline int runs_avx512bf16(void) {
    return runs_avx512() && cpuid_has(7, 1, CPUID_A, 1 << 5);
}

#if defined(__linux__)
/* Requests AMX permission from Linux. It fails before Linux 5.16 and where a hypervisor hides AMX. */
static inline int runs_amx(void) {
    enum { VBMI = 1 << 1, BF16 = 1 << 22, TILE = 1 << 24, INT8 = 1 << 25 };
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return runs_avx512bf16() && cpuid_has(7, 0, CPUID_C, VBMI) && cpuid_has(7, 0, CPUID_D, BF16 | TILE | INT8) &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#endif
#elif defined(__aarch64__) && defined(__linux__)
static inline int runs_dotprod(void) {
    return getauxval(AT_HWCAP) >> 20 & 1; /* ASIMDDP */
}

static inline int runs_i8mm(void) {
    return (getauxval(AT_HWCAP) >> 20 & 1) && (getauxval(AT_HWCAP2) >> 13 & 1); /* ASIMDDP, I8MM */
}
#elif defined(__aarch64__) && defined(__APPLE__)
/* By Apple's documentation; not tested on such a machine. */
static inline int has(const char *feature) {
    int32_t yes = 0;
    size_t size = sizeof yes;
    return sysctlbyname(feature, &yes, &size, NULL, 0) == 0 && yes;
}

static inline int runs_dotprod(void) {
    return has("hw.optional.arm.FEAT_DotProd");
}

static inline int runs_i8mm(void) {
    return runs_dotprod() && has("hw.optional.arm.FEAT_I8MM");
}
#elif defined(__aarch64__) && defined(_WIN32)
/* By Microsoft's documentation; not tested on such a machine. */
static inline int runs_dotprod(void) {
    enum { ARM_V82_DP = 43 };
    return IsProcessorFeaturePresent(ARM_V82_DP) != 0;
}

static inline int runs_i8mm(void) {
    enum { ARM_V82_I8MM = 66 };
    return runs_dotprod() && IsProcessorFeaturePresent(ARM_V82_I8MM) != 0;
}
#elif defined(__aarch64__)
static inline int runs_dotprod(void) {
    return 0; /* how another system is asked is not known here */
}

static inline int runs_i8mm(void) {
    return 0;
}
#endif

#define runs_scalar runs_baseline
#define runs_neon runs_baseline
/* A module with instructions that the engine lacks is not loaded at all: web/satchel.mjs chooses. */
#define runs_simd128 runs_baseline
#define runs_relaxed runs_baseline

#endif
