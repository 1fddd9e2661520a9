/* mapped.h: ranges of mapped files that the kernels read; see mapped.c. */
#ifndef SATCHEL_CPU_MAPPED_H
#define SATCHEL_CPU_MAPPED_H

#include <stdint.h>

#define MAPPED_LOST                                                                                                    \
    "the model's file was cut short, or the disk cannot read it: don't write to a model in use, and load it again"

int mapped_enter(const void *data, uint64_t size); /* registers a range; -1: it is not watched */
void mapped_drop(int range);                       /* unregisters it; -1 does nothing */
void mapped_watch(void);    /* before ranges are read: puts the handler in place again if it is not */
int mapped_lost(int range); /* whether a page of it was lost since mapped_enter() */

#endif
