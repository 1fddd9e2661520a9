/* self.h: where a thread of a kernel stands; made by the target, passed by value. */
#ifndef SATCHEL_SELF_H
#define SATCHEL_SELF_H

typedef struct {
    int thread, threads; /* of the group */
    int lane, wave, waves;
    int group[3];        /* the group's place in the grid */
    LOCAL char *local;   /* the group's memory, as much as the grid asked for, at a multiple of 16 bytes */
} self;

#endif
