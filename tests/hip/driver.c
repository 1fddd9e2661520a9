/* driver.c: a library with the functions of AMD's driver, so that the HIP backend runs where there is no such GPU. What they
 * do is done by the emulated driver, with kernels compiled for waves of 64 lanes, or (SERVED_BY_CUDA) by NVIDIA's. It is
 * strict about what the real one gets: numbers of attributes, the bundle of code objects and the kernels' names in them.
 *
 * HIP_TEST_ARCH: the processor that it says it is, gfx942 if nothing else is said; one that the bundle lacks is compiled
 * for "at run time".
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vendor.h"
#ifndef SERVED_BY_CUDA
#include "driver.h"
#endif

enum { INVALID = 1, NO_BINARY = 209, NOT_FOUND = 500, EM_AMDGPU = 224, NAME = 64 };

/* A function of HIP's name for each that the host calls; it jumps to where serve_<field> points. */
#define X(field, arguments, cuda, hip, needed) __attribute__((visibility("hidden"))) void *serve_##field;
GPU_API(X)
#undef X
#if defined(__x86_64__)
#define JUMP(to) "jmp *" to "(%rip)"
#else
#define JUMP(to) "adrp x16, " to "\n ldr x16, [x16, :lo12:" to "]\n br x16"
#endif
#define X(field, arguments, cuda, hip, needed)                                                                         \
    __asm__(".text\n.ifnc \"" hip "\",\"\"\n.globl " hip "\n" hip ":\n" JUMP("serve_" #field) "\n.endif\n");
GPU_API(X)
#undef X

static gpu_api real;
static const uint8_t *code; /* the loaded code object */
static size_t code_size;

static int attribute(int *out, int which, int device) {
    const gpu_numbers *is = &real.is;
    switch (which) {
    case 23:
        return real.attribute(out, is->major, device);
    case 61:
        return real.attribute(out, is->minor, device);
    case 63:
        return real.attribute(out, is->units, device);
    case 74:
        return real.attribute(out, is->shared, device);
    case 87:
        return real.attribute(out, is->wave, device);
    }
    return INVALID;
}

/* Only the size of a thread's stack has a limit that a host of ours may set. */
static int limit(int which, size_t bytes) {
    return which || !bytes ? INVALID : real.limit ? real.limit(which, bytes) : 0;
}

static int state(int device, unsigned *flags, int *active) {
    *flags = 0, *active = 0;
    return real.state ? real.state(device, flags, active) : 0;
}

static uint64_t word(const uint8_t *at) {
    uint64_t x;
    memcpy(&x, at, sizeof x);
    return x;
}

/* The entry of a bundle whose id ends so; NULL: there is none. */
static const uint8_t *entry(const uint8_t *bundle, const char *end, size_t *size) {
    const uint8_t *at = bundle + 32;
    for (uint64_t i = 0, n = word(bundle + 24); i < n; i++) {
        uint64_t length = word(at + 16);
        if (length >= strlen(end) && !memcmp(at + 24 + length - strlen(end), end, strlen(end))) {
            *size = word(at + 8);
            return bundle + word(at);
        }
        at += 24 + length;
    }
    return NULL;
}

static const char *arch(void) {
    const char *named = getenv("HIP_TEST_ARCH");
    return named ? named : "gfx942";
}

static int is_amd(const uint8_t *elf) {
    return !memcmp(elf, "\177ELF", 4) && (elf[18] | elf[19] << 8) == EM_AMDGPU;
}

static int load(gpu_module *out, const void *image) {
    const uint8_t *found = image;
    size_t size = 0;
    if (!memcmp(image, "__CLANG_OFFLOAD_BUNDLE__", 24)) {
#ifdef SERVED_BY_CUDA
        found = entry(image, "nvptx64-nvidia-cuda--sm_90a", &size);
        return found ? real.load(out, found) : NO_BINARY;
#else
        if (!(found = entry(image, arch(), &size)))
            return NO_BINARY;
#endif
    }
    if (!is_amd(found) || (size && (uintptr_t)found % 4096 != (uintptr_t)image % 4096))
        return NO_BINARY;
    code = found;
    code_size = size;
    return real.load(out, image);
}

/* A kernel has its descriptor in the code object, under its name and ".kd". */
static int function(gpu_function *out, gpu_module module, const char *name) {
    char wanted[NAME];
    snprintf(wanted, sizeof wanted, "%s.kd", name);
#ifndef SERVED_BY_CUDA
    if (code_size && !memmem(code, code_size, wanted, strlen(wanted) + 1))
        return NOT_FOUND;
#endif
    return real.function(out, module, name);
}

/* --- hipRTC: a program is its text; its code, a header that load() takes */

int hiprtcCreateProgram(void **out, const char *text, const char *name, int n, const char **headers,
                        const char **names);
int hiprtcCompileProgram(void *program, int n, const char **options);
int hiprtcGetCodeSize(void *program, size_t *size);
int hiprtcGetCode(void *program, char *to);
int hiprtcGetProgramLogSize(void *program, size_t *size);
int hiprtcGetProgramLog(void *program, char *to);
int hiprtcDestroyProgram(void **program);

int hiprtcCreateProgram(void **out, const char *text, const char *name, int n, const char **headers,
                        const char **names) {
    (void)name, (void)headers, (void)names;
    *out = (void *)(uintptr_t)text;
    return n;
}

int hiprtcCompileProgram(void *program, int n, const char **options) {
    return n < 1 || strncmp(options[0], "-DPORT_WAVE=", 12) || !strstr(program, "PORT_WAVE") ||
           strstr(program, "#include") || !strcmp(arch(), "gfx000");
}

int hiprtcGetCodeSize(void *program, size_t *size) {
    (void)program;
    *size = 64;
    return 0;
}

int hiprtcGetCode(void *program, char *to) {
    (void)program;
    memset(to, 0, 64);
    memcpy(to, "\177ELF", 4);
    to[18] = (char)EM_AMDGPU;
    return 0;
}

int hiprtcGetProgramLogSize(void *program, size_t *size) {
    (void)program;
    *size = 5;
    return 0;
}

int hiprtcGetProgramLog(void *program, char *to) {
    (void)program;
    memcpy(to, "what", 5);
    return 0;
}

int hiprtcDestroyProgram(void **program) {
    *program = NULL;
    return 0;
}

__attribute__((constructor)) static void serve(void) {
    gpu_api served;
#ifdef SERVED_BY_CUDA
    static const char *const libraries[] = {"libcuda.so.1", NULL};
    real.is = (gpu_numbers){.major = 75, .minor = 76, .units = 16, .shared = 97, .wave = 10, .not_ready = 600};
    if (gpu_look_up(&real, libraries, 0)) {
        fprintf(stderr, "libcuda.so.1 cannot be opened\n");
        abort();
    }
#else
    emulated_driver(&real);
#endif
    served = real;
    served.attribute = attribute;
    served.load = load;
    served.limit = limit;
    served.state = state;
    served.function = function;
#define X(field, arguments, cuda, hip, needed) serve_##field = *(void **)&served.field;
    GPU_API(X)
#undef X
}
