"""Speculative decoding: cheap draft tokens, verified by the model in one step.

Random numbers are keyed by (seed, position), so after a draft token the model samples what it would have
sampled without it. The answer is the same token for token, greedy or sampled; only its speed differs.
"""

from satchel.runtime.speculation import Speculation
from satchel.runtime.speculative.speculator import Speculator

__all__ = ["Speculation", "Speculator"]
