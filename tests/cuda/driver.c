/* driver.c: a library with the functions of NVIDIA's driver (libcuda.so.1), so that the CUDA backend opens where there is no GPU.
 * Nothing is computed: what they do is done by the driver of the test backend `dry`. It is strict about what the real one gets:
 * numbers of attributes, machine code (an ELF file for the card's architecture) or PTX, and the kernels' names in them.
 *
 * CUDA_TEST_ARCH: the compute capability times 10, 90 if nothing else is said. CUDA_TEST_DRIVER: its version, 12000 likewise.
 */
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

enum { INVALID = 1, BAD_IMAGE = 200, NO_BINARY = 209, NEWER_PTX = 222, NOT_FOUND = 500, NAME = 128 };

/* A function of CUDA's name for each that the host calls; it jumps to where serve_<field> points. */
#define X(field, arguments, cuda, hip, needed) __attribute__((visibility("hidden"))) void *serve_##field;
GPU_API(X)
#undef X
#if defined(__x86_64__)
#define JUMP(to) "jmp *" to "(%rip)"
#else
#define JUMP(to) "adrp x16, " to "\n ldr x16, [x16, :lo12:" to "]\n br x16"
#endif
#define X(field, arguments, cuda, hip, needed)                                                                         \
    __asm__(".text\n.ifnc \"" cuda "\",\"\"\n.globl " cuda "\n" cuda ":\n" JUMP("serve_" #field) "\n.endif\n");
GPU_API(X)
#undef X

static gpu_api real;

static int number_of(const char *variable, int usual) {
    const char *text = getenv(variable);
    return text ? atoi(text) : usual;
}

static int version(int *out) {
    *out = number_of("CUDA_TEST_DRIVER", 12000);
    return 0;
}

static int attribute(int *out, int which, int device) {
    const gpu_numbers *is = &real.is;
    int arch = number_of("CUDA_TEST_ARCH", 90);
    switch (which) {
    case 75:
        *out = arch / 10;
        return 0;
    case 76:
        *out = arch % 10;
        return 0;
    case 16:
        return real.attribute(out, is->units, device);
    case 97:
        return real.attribute(out, is->shared, device);
    case 10:
        return real.attribute(out, is->wave, device);
    }
    return INVALID;
}

static int is_elf(const char *image) {
    return !memcmp(image, ELFMAG, SELFMAG);
}

/* The architecture of machine code is in the header's flags, where depends on the file's version; "a" is a flag of its own. */
static int takes_code(const Elf64_Ehdr *head) {
    int arch = number_of("CUDA_TEST_ARCH", 90);
    int newer = head->e_ident[EI_ABIVERSION] >= 8;
    int number = newer ? head->e_flags >> 8 & 0xFF : head->e_flags & 0xFF;
    int own = newer ? head->e_flags >> 3 & 1 : head->e_flags >> 11 & 1;
    if (head->e_machine != EM_CUDA)
        return BAD_IMAGE;
    fprintf(stderr, "code of sm_%d%s\n", number, own ? "a" : "");
    if (own)
        return number == arch ? 0 : NO_BINARY;
    return number / 10 == arch / 10 && number <= arch ? 0 : NO_BINARY;
}

static int takes_text(const char *text) {
    int major = 0, minor = 0, number = 0, driver;
    const char *at = strstr(text, ".version"), *target = strstr(text, ".target");
    if (!at || !target || sscanf(at, ".version %d.%d", &major, &minor) != 2 ||
        sscanf(target, ".target sm_%d", &number) != 1)
        return BAD_IMAGE;
    fprintf(stderr, "PTX %d.%d of sm_%d\n", major, minor, number);
    version(&driver);
    if (major > 8 || (major == 8 && minor > driver % 1000 / 10)) /* CUDA 12.n knows PTX to 8.n */
        return NEWER_PTX;
    return number <= number_of("CUDA_TEST_ARCH", 90) ? 0 : NO_BINARY;
}

static int load(gpu_module *out, const void *image) {
    *out = (void *)(uintptr_t)image;
    return is_elf(image) ? takes_code(image) : takes_text(image);
}

/* A kernel has a section of its name in machine code, and an entry in PTX. Its handle is that of dry's driver, which launches it. */
static int function(gpu_function *out, gpu_module module, const char *name) {
    char wanted[NAME];
    const char *image = module;
    const Elf64_Ehdr *head = module;
    if (!is_elf(image)) {
        snprintf(wanted, sizeof wanted, ".entry %s(", name);
        return strstr(image, wanted) ? real.function(out, module, name) : NOT_FOUND;
    }
    snprintf(wanted, sizeof wanted, ".text.%s", name);
    const Elf64_Shdr *sections = (const void *)(image + head->e_shoff);
    const char *names = image + sections[head->e_shstrndx].sh_offset;
    for (int i = 0; i < head->e_shnum; i++)
        if (!strcmp(names + sections[i].sh_name, wanted))
            return real.function(out, module, name);
    return NOT_FOUND;
}

/* --- what dry's driver does without: these do nothing either */

static char handle;

static int launch_with(const gpu_launch_config *how, gpu_function f, void **arguments, void **more) {
    (void)how, (void)f, (void)arguments, (void)more;
    return 0;
}

static int capture(gpu_stream s, int mode) {
    (void)s, (void)mode;
    return 0;
}

static int end_capture(gpu_stream s, gpu_graph *out) {
    (void)s;
    *out = &handle;
    return 0;
}

static int instantiate(gpu_graph_exec *out, gpu_graph of, uint64_t flags) {
    (void)of, (void)flags;
    *out = &handle;
    return 0;
}

static int replay(gpu_graph_exec of, gpu_stream s) {
    (void)of, (void)s;
    return 0;
}

static int end(void *of) {
    (void)of;
    return 0;
}

static int state(int device, unsigned *flags, int *active) {
    (void)device;
    *flags = 0, *active = 0;
    return 0;
}

static int limit(int which, size_t bytes) {
    return which || !bytes ? INVALID : 0;
}

__attribute__((constructor)) static void serve(void) {
    gpu_api served;
    dry_driver(&real);
    served = real;
    served.launch_with = launch_with;
    served.capture = capture;
    served.end_capture = end_capture;
    served.instantiate = instantiate;
    served.upload = served.replay = replay;
    served.end_graph = served.end_graph_exec = end;
    served.state = state;
    served.limit = limit;
    served.version = version;
    served.attribute = attribute;
    served.load = load;
    served.function = function;
#define X(field, arguments, cuda, hip, needed) serve_##field = *(void **)&served.field;
    GPU_API(X)
#undef X
}
