/* latent_step.h: sizes shared by latent_step.cu and latent.c. */
#ifndef SATCHEL_CUDA_LATENT_STEP_H
#define SATCHEL_CUDA_LATENT_STEP_H

enum {
    LATENT_STEP_WAVES = 4,
    LATENT_STEP_ACTS = 560,   /* bytes of a chunk's activations, a multiple of 16 */
    LATENT_STEP_MOST = 1024,  /* numbers of a cache's row */
    LATENT_STEP_TOKENS = 16   /* that a launch takes: each reads k_b again */
};

#endif
