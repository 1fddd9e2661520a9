"""Sampling: the user's options, and the definition that every device's sample op follows. The random number
is a pure function of (seed, position), so a token does not depend on batch, slot or earlier draws.
"""

from satchel.runtime.sampling.chain import NONE, lost, penalized, sample_row
from satchel.runtime.sampling.exact import MASK, uniform
from satchel.runtime.sampling.options import GREEDY, LETTERS, NAMES, ORDER, WHOLE, Sampling, SamplingKwargs

__all__ = [
    "GREEDY",
    "LETTERS",
    "MASK",
    "NAMES",
    "NONE",
    "ORDER",
    "WHOLE",
    "Sampling",
    "SamplingKwargs",
    "lost",
    "penalized",
    "sample_row",
    "uniform",
]
