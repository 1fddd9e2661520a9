/* probe.c: a build-time program that prints the instruction sets of probe_sets.inc that this machine runs, one per line. */
#include <stdio.h>

#include "detect.h"

int main(void) {
#define CPU_SET(name)                                                                                                  \
    if (runs_##name())                                                                                                 \
        puts(#name);
#include "probe_sets.inc"
    return 0;
}
