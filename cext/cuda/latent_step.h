/* latent_step.h: sizes shared by latent_step.cu and latent.c. */
#ifndef SATCHEL_CUDA_LATENT_STEP_H
#define SATCHEL_CUDA_LATENT_STEP_H

enum {
    LATENT_STEP_WAVES = 4,
    LATENT_STEP_ACTS = 2192, /* bytes of a chunk's activations of four tokens, a multiple of 16 */
    LATENT_STEP_MOST = 1024, /* numbers of a cache's row */
    HEAD_STEP_CHUNKS = 4,    /* of a row of head_linear's weights */
    LATENT_STEP_TOKENS = 128 /* that a launch takes: each four read the weights again */
};

#endif
