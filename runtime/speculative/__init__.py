"""Speculative decoding: draft tokens that are cheap to propose, verified by the model in one step.

Random numbers are keyed by (seed, position), so what is sampled after a draft token is what would have been
sampled without it: an answer is the same token for token, greedy or drawn, and only its speed differs.
"""

from satchel.runtime.speculation import Speculation
from satchel.runtime.speculative.speculator import Speculator

__all__ = ["Speculation", "Speculator"]
