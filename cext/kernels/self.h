/* self.h: indices of a thread in its group, wave and grid; made by the target, passed by value. */
#ifndef SATCHEL_SELF_H
#define SATCHEL_SELF_H

typedef struct {
    int thread, threads; /* of the group */
    int lane, wave, waves;
    int group[3];      /* the group's index in the grid */
    LOCAL char *local; /* the group's local memory: gpu_grid.shared bytes, 16-byte aligned */
} self;

#endif
