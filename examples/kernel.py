"""A custom kernel for one op: python examples/kernel.py [--device cuda] [-m MODEL] [-n TOKENS]

The source below computes rms_norm, in the portable kernel language of docs/gpu-kernels.md: NVRTC compiles it
for an NVIDIA GPU, the system's C compiler for the emulated one. Satchel checks it against the op's definition
before using it.
"""

from __future__ import annotations

import argparse
from math import prod

from satchel import Model, kernels
from satchel.runtime.sampling import GREEDY

# One thread group computes one row: y = x * w / sqrt(mean(x * x) + eps); y, x and w are c->v[0], [1] and [2].
SOURCE = """
#include "port.h"

KERNEL(my_norm, 128) {
    LOCAL float *room = (LOCAL float *)m.local;
    DEVICE const float *x, *w = ROW(const float, c->v + 2, 0);
    DEVICE float *y;
    int d = c->v[2].shape[0];
    float eps = ((const arg_rms_norm *)c->arg)->eps, sum = 0;
    if (m.group[1] >= rows_of(c, c->v))
        return; /* the step has fewer rows than the grid was made for */
    x = ROW(const float, c->v + 1, m.group[1]) + (int64_t)m.group[0] * d;
    y = ROW(float, c->v, m.group[1]) + (int64_t)m.group[0] * d;
    for (int i = m.thread; i < d; i += m.threads)
        sum += x[i] * x[i];
    sum = 1 / sqrtf(group_sum(m, sum, room) / (float)d + eps);
    for (int i = m.thread; i < d; i += m.threads)
        y[i] = x[i] * sum * w[i];
}
"""


def grid(call: kernels.KernelCall) -> kernels.LaunchGrid:
    """One group for each head of each token; local memory for one number of each wave."""
    width = call.inputs[1].shape[0]
    groups = prod(call.output.shape[1:]) // width, call.output.shape[0]
    return kernels.LaunchGrid(groups, threads=128, local=64)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda, or emulated: slow, on any machine")
    parser.add_argument("-m", "--model", help="file, or name of `satchel list`; default: the bundled one")
    parser.add_argument("-n", type=int, default=24, help="tokens")
    asked = parser.parse_args()
    kernels.register("rms_norm", SOURCE, "my_norm", grid, devices=("cuda", "emulated"))
    with Model.load(asked.model, device=asked.device, context=256) as model:
        question = [{"role": "user", "content": "Hello!"}]
        print("".join(model.chat(question, max_tokens=asked.n, sampling=GREEDY)))


if __name__ == "__main__":
    main()
