"""EXAONE 4: QK-norm per head, and post-norm instead of pre-norm. In the largest model three of four layers
have a sliding window, and the fourth has full attention without RoPE (NoPE).
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

PERIOD, LARGEST, WINDOW = 4, 64, 4096  # LARGEST: layers of the 32B, whose files may lack the window


def _extra(reader: ConfigReader) -> None:
    """The layers with a sliding window: as a list, a period, or a pattern of letters (L: window, G: full
    attention).
    """
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
