/* compile.c: run-time compilation by hipRTC, for GPUs that the library has no code object for. hipRTC is loaded by name, like
 * the driver. Compiling takes half a minute or more, each time a device is opened.
 */
#include "compile.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "os.h"

enum { PAGE = 4096 };

typedef void *program;
typedef struct {
    int (*create)(program *, const char *, const char *, int, const char **, const char **);
    int (*compile)(program, int, const char **);
    int (*code_size)(program, size_t *);
    int (*code)(program, char *);
    int (*log_size)(program, size_t *);
    int (*log)(program, char *);
    int (*destroy)(program *);
} functions;

static const struct {
    const char *name;
    size_t at;
} names[] = {
    {"hiprtcCreateProgram", offsetof(functions, create)},       {"hiprtcCompileProgram", offsetof(functions, compile)},
    {"hiprtcGetCodeSize", offsetof(functions, code_size)},      {"hiprtcGetCode", offsetof(functions, code)},
    {"hiprtcGetProgramLogSize", offsetof(functions, log_size)}, {"hiprtcGetProgramLog", offsetof(functions, log)},
    {"hiprtcDestroyProgram", offsetof(functions, destroy)},
};

static char message[512];

/* Until ROCm 5 these functions were also in the driver's own library. */
static int look_up(functions *f) {
    const char *named = getenv("SATCHEL_HIP_DRIVER");
    const char *const libraries[] = {named ? named : "libhiprtc.so.7", named ? NULL : "libhiprtc.so.6",
                                     "libhiprtc.so.5", "libamdhip64.so.5", NULL};
    void *library = NULL;
    for (int i = 0; libraries[i] && !library; i++)
        library = os_library(libraries[i]);
    if (!library) {
        snprintf(message, sizeof message, "hipRTC (%s) is not installed", libraries[0]);
        return -1;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *found = os_function(library, names[i].name);
        if (!found) {
            snprintf(message, sizeof message, "hipRTC has no %s", names[i].name);
            return -1;
        }
        *(void **)((char *)f + names[i].at) = found;
    }
    return 0;
}

/* Stores an error message with the start of the compiler's log. */
static void tell(const functions *f, program p, int code) {
    size_t size = 0;
    char *said = NULL;
    if (!f->log_size(p, &size) && size > 1 && (said = calloc(1, size + 1)))
        f->log(p, said);
    snprintf(message, sizeof message, "hipRTC gave error %d: %.400s", code, said ? said : "");
    free(said);
}

static void *code_of(const functions *f, program p) {
    size_t size = 0;
    void *out = NULL;
    if (f->code_size(p, &size) || !size || !(out = os_alloc(PAGE, (size / PAGE + 1) * PAGE)) || f->code(p, out)) {
        snprintf(message, sizeof message, "hipRTC gave no code");
        if (out)
            os_free(out);
        return NULL;
    }
    return out;
}

void *hip_compile(const char *text, int wave, const char **why) {
    const char *options[] = {wave == 64 ? "-DPORT_WAVE=64" : "-DPORT_WAVE=32", "-O3", "-std=c++17",
                             "-ffp-contract=off"};
    functions f;
    program p = NULL;
    void *out = NULL;
    int code;
    *why = message;
    if (look_up(&f))
        return NULL;
    if ((code = f.create(&p, text, "portable.hip", 0, NULL, NULL))) {
        snprintf(message, sizeof message, "hipRTC gave error %d", code);
        return NULL;
    }
    if ((code = f.compile(p, (int)(sizeof options / sizeof *options), options)))
        tell(&f, p, code);
    else
        out = code_of(&f, p);
    f.destroy(&p);
    return out;
}
