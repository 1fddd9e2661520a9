"""OLMo 2 and 3: Q and K normed over all heads together, and norms behind both parts of a layer instead of
before them; in OLMo 3 most layers have a sliding window, and only the others a rotary scaling.
"""

from dataclasses import replace

from satchel.formats.convert.mapping import (
    ATTENTION,
    DENSE_GUARDS,
    DENSE_KEYS,
    FOUR_NORMS,
    HEAD_NORMS,
    OUTSIDE,
    SWIGLU,
    ArchMapping,
    ConfigReader,
    Key,
    listed_windows,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import alternating, post_norm_layer

MAPPING = ArchMapping(
    classes=("Olmo2ForCausalLM",),
    model_type="olmo2",
    arch="olmo2",
    rules=(*OUTSIDE, *(r for r in FOUR_NORMS if "post_" in r.target), *ATTENTION, *HEAD_NORMS, *SWIGLU),
    keys=DENSE_KEYS,
    guards=DENSE_GUARDS,
)
PERIOD = 4


def _kinds(reader: ConfigReader) -> None:
    listed_windows(reader, PERIOD)


OLMO3 = replace(
    MAPPING,
    classes=("Olmo3ForCausalLM",),
    model_type="olmo3",
    keys=(*DENSE_KEYS, Key("attention.sliding_window", ("sliding_window",))),
    extra=_kinds,
)
MAPPINGS = (MAPPING, OLMO3)


class Olmo2(Arch):
    def layer(self, x: Node, i: int) -> Node:
        return post_norm_layer(self, x, i, before=False)

    def window(self, i: int) -> int:
        seen = self.hp.uint("attention.sliding_window", 0, low=0, high=1 << 30)
        return seen if seen and alternating(self, i, PERIOD) else 0

    def rope_base(self, i: int) -> float:
        base = self.hp.real("rope.freq_base", 10000.0, low=1e-6)
        return self.hp.real("rope.freq_base_swa", base, low=1e-6) if self.window(i) else 0.0
