"""EXAONE 4: Q and K normed per head, norms behind both parts of a layer instead of before them; in the large
one three layers of four have a sliding window, and the others know no positions.
"""

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

PERIOD, LARGEST, WINDOW = 4, 64, 4096  # files of the large one may leave its window out


def _extra(reader: ConfigReader) -> None:
    """Which layers have the window: listed, or by a period or its letters (L: the window, G: all)."""
    stated = reader.config.get("sliding_window_pattern", PERIOD)
    if reader.config.get("sliding_window") is not None:
        listed_windows(reader, len(stated) if isinstance(stated, str) else stated)
    elif reader.config.get("num_hidden_layers") == LARGEST:
        raise reader.fault("sliding_window", "a number", None, "a large model without it is not supported")


MAPPING = ArchMapping(
    classes=("Exaone4ForCausalLM",),
    model_type="exaone4",
    arch="exaone4",
    rules=(*OUTSIDE, *(r for r in FOUR_NORMS if "post_" in r.target), *ATTENTION, *HEAD_NORMS, *SWIGLU),
    keys=(*DENSE_KEYS, Key("attention.sliding_window", ("sliding_window",), optional=True)),
    guards=DENSE_GUARDS,
    extra=_extra,
)


class Exaone4(Arch):
    def layer(self, x: Node, i: int) -> Node:
        return post_norm_layer(self, x, i, before=False)

    def _seen(self) -> int:
        usual = WINDOW if self.layers == LARGEST else 0
        return self.hp.uint("attention.sliding_window", usual, low=0, high=1 << 30)

    def window(self, i: int) -> int:
        seen = self._seen()
        return seen if seen and alternating(self, i, PERIOD) else 0

    def rotates(self, i: int) -> bool:
        return not self._seen() or self.window(i) > 0
