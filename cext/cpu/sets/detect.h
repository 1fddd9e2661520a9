/* detect.h: CPU feature detection: runs_<set>() tells whether CPU and system support an instruction set of CMakeLists.txt. */
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
#endif

static int runs_baseline(void) {
    return 1;
}

#if defined(__x86_64__)
/* f16c is not tested: some compilers don't know its name, and every CPU with AVX2 has it. */
static int runs_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static int runs_avx512(void) {
    return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}

/* A bit of CPUID leaf 7, for features whose names some compilers don't know. */
static int leaf_7(unsigned sub, int in_edx, int bit) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(7, sub, &a, &b, &c, &d))
        return 0;
    return (in_edx ? d : a) >> bit & 1;
}

static int runs_avxvnni(void) {
    return runs_avx2() && leaf_7(1, 0, 4);
}

static int runs_avx512bf16(void) {
    return runs_avx512() && leaf_7(1, 0, 5);
}

#if defined(__linux__)
/* Requests AMX permission from Linux. It fails before Linux 5.16 and where a hypervisor hides AMX. */
static int runs_amx(void) {
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return runs_avx512bf16() && __builtin_cpu_supports("avx512vbmi") && leaf_7(0, 1, 24) && leaf_7(0, 1, 25) &&
           leaf_7(0, 1, 22) && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#endif
#elif defined(__aarch64__) && defined(__linux__)
static int runs_dotprod(void) {
    return getauxval(AT_HWCAP) >> 20 & 1; /* ASIMDDP */
}

static int runs_i8mm(void) {
    return (getauxval(AT_HWCAP) >> 20 & 1) && (getauxval(AT_HWCAP2) >> 13 & 1); /* ASIMDDP, I8MM */
}
#elif defined(__aarch64__) && defined(__APPLE__)
/* By Apple's documentation; not tested on such a machine. */
static int has(const char *feature) {
    int32_t yes = 0;
    size_t size = sizeof yes;
    return sysctlbyname(feature, &yes, &size, NULL, 0) == 0 && yes;
}

static int runs_dotprod(void) {
    return has("hw.optional.arm.FEAT_DotProd");
}

static int runs_i8mm(void) {
    return runs_dotprod() && has("hw.optional.arm.FEAT_I8MM");
}
#elif defined(__aarch64__)
static int runs_dotprod(void) {
    return 0; /* detection is implemented for Linux and macOS only */
}

static int runs_i8mm(void) {
    return 0;
}
#endif

#define runs_scalar runs_baseline
#define runs_neon runs_baseline

#endif
