/* gated.k.h: SwiGLU of one element, for the kernels that fuse it. */
#ifndef SATCHEL_GATED_K_H
#define SATCHEL_GATED_K_H

#include "port.h"

/* gate * sigmoid(gate) * up */
FN float gated(float gate, float up) {
    return gate / (1.0f + expf(-gate)) * up;
}

#endif
