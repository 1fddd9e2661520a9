/* isa.c: the instruction sets that this library has kernels for, the best last.
 *
 * CMake makes cpu_sets.inc: one CPU_SET(name) per set that was built.
 */
#include <string.h>

#include "detect.h"
#include "cpu.h"

#define CPU_SET(name) extern const cpu_set cpu_set_##name;
#include "cpu_sets.inc"
#undef CPU_SET

static const struct {
    const cpu_set *set;
    int (*runs)(void);
} sets[] = {
#define CPU_SET(name) {&cpu_set_##name, runs_##name},
#include "cpu_sets.inc"
#undef CPU_SET
};

/* An error says it. packaging/check.py and `satchel --version --json` read it from the library's bytes, for sets and systems that
 * the machine cannot run. */
const char cpu_set_list[] = "sets of this library:"
#define CPU_SET(name) " " #name
#include "cpu_sets.inc"
#undef CPU_SET
    ;

const cpu_set *cpu_set_best(const char *forced) {
    for (size_t i = sizeof sets / sizeof *sets; i-- > 0;)
        if ((!forced || strcmp(forced, sets[i].set->name) == 0) && sets[i].runs())
            return sets[i].set;
    return NULL;
}
