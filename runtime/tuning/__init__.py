"""Which of a device's own kernels is fastest for a step: measured by `satchel tune`, remembered in the user's
cache folder, and asked for whenever a plan is compiled. docs/tune.md says what is promised of it.
"""

from __future__ import annotations

from satchel.runtime.tuning.kept import Tuned, device_key, forget, place, read, remember, tuned_for
from satchel.runtime.tuning.shape import shape_of

__all__ = ["Tuned", "device_key", "forget", "place", "read", "remember", "shape_of", "tuned_for"]
