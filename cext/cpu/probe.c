/* probe.c: a program of the build that prints which of the sets in probe_sets.inc this machine runs, a line each. */
#include <stdio.h>

#include "detect.h"

int main(void) {
#define CPU_SET(name) if (runs_##name()) puts(#name);
#include "probe_sets.inc"
    return 0;
}
