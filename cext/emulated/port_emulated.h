/* port_emulated.h: the macros of port.h for the emulated GPU: a group's threads are fibers of one CPU thread (fibers.h), which
 * switch where they wait for each other. Kernels register their names before main() begins.
 */
#ifndef SATCHEL_PORT_EMULATED_H
#define SATCHEL_PORT_EMULATED_H

#define FN static inline
#define FN_CALL static
#define NOT_UNROLLED
#define UNROLLED
#define DEVICE
#define LOCAL
#ifndef WAVE
#define WAVE 32
#endif

#include "exact.h"
#include "fibers.h"
#include "formats.h"

typedef uint32_t word_16 __attribute__((vector_size(16)));
#define DOT4(a, b, sum) dot_4(a, b, sum)

#ifdef PORT_OUTSIDE
/* A kernel in a library of its own: the backend looks up `emulated_kernel_<name>` and sets its blocking functions. */
#define PORT_SHOWN __attribute__((visibility("default")))
PORT_SHOWN emulated_words emulated_given;
#define KERNEL(name, threads)                                                                                          \
    static void name##_body(const gpu_call *c, self m);                                                                \
    static void name##_run(const gpu_call *c, const self *m) {                                                         \
        name##_body(c, *m);                                                                                            \
    }                                                                                                                  \
    PORT_SHOWN emulated_kernel emulated_kernel_##name = {#name, name##_run, threads, WAVE, NULL};                      \
    static void name##_body(const gpu_call *c, self m)
#define BARRIER(m) ((void)(m), emulated_given.barrier())
#define TAKE(m, bits, from) ((void)(m), emulated_given.take(bits, from))
#else
#define KERNEL(name, threads)                                                                                          \
    static void name##_body(const gpu_call *c, self m);                                                                \
    static void name(const gpu_call *c, const self *m) {                                                               \
        name##_body(c, *m);                                                                                            \
    }                                                                                                                  \
    __attribute__((constructor)) static void name##_told(void) {                                                       \
        static emulated_kernel k = {#name, name, threads, WAVE, NULL};                                                 \
        emulated_tell(&k);                                                                                             \
    }                                                                                                                  \
    static void name##_body(const gpu_call *c, self m)

#define BARRIER(m)                                                                                                     \
    do {                                                                                                               \
        static emulated_site here = {.file = __FILE__, .line = __LINE__};                                              \
        (void)(m);                                                                                                     \
        emulated_barrier_at(&here);                                                                                    \
    } while (0)
#define TAKE(m, bits, from) ((void)(m), emulated_take(bits, from))
#endif
#define ADD_LOCAL(where, x) ((void)(*(where) += (x)))

#endif
