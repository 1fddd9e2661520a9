"""Selects the fastest of a device's kernels for a step: measured by `satchel tune`, stored in the user's
cache folder, and looked up whenever a plan is compiled. See docs/tune.md.
"""

from __future__ import annotations

from satchel.runtime.tuning.kept import Tuned, device_key, forget, place, read, remember, tuned_for
from satchel.runtime.tuning.shape import shape_of

__all__ = ["Tuned", "device_key", "forget", "place", "read", "remember", "shape_of", "tuned_for"]
