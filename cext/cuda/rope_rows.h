/* rope_rows.h: sizes of rope_rows.cu that its host code shares. */
#ifndef SATCHEL_CUDA_ROPE_ROWS_H
#define SATCHEL_CUDA_ROPE_ROWS_H

enum {
    RUN = 8 /* numbers of a head that a thread has */,
    ROPE_THREADS = 256,
    ROPE_AHEAD = 3 /* heads whose numbers a thread loads together */,
    ROPE_HEAD = 256 /* numbers of a head at most: a wave has as many */,
    ROPE_LEAST = 32 /* tokens; of fewer, heads have groups of their own */
};

#endif
