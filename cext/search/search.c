/* search.c: the one exported symbol of the search library. CMake makes search_sets.inc: one SEARCH_SET(name) per instruction set
 * that was built, the best last.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "search.h"
#include "search_hash.h"
#include "sets/detect.h"

#define SEARCH_SET(name) extern const search_loops search_loops_##name;
#include "search_sets.inc"
#undef SEARCH_SET

static const struct {
    const search_loops *loops;
    int (*runs)(void);
} sets[] = {
#define SEARCH_SET(name) {&search_loops_##name, runs_##name},
#include "search_sets.inc"
#undef SEARCH_SET
};

__attribute__((visibility("default"))) const search_loops *search_entry(uint64_t hash, const char *set) {
    if (hash != SEARCH_HASH)
        return NULL;
    for (size_t i = sizeof sets / sizeof *sets; i-- > 0;)
        if ((!*set || strcmp(set, sets[i].loops->set) == 0) && sets[i].runs())
            return sets[i].loops;
    return NULL;
}
