"""Command R7B and A (Cohere 2): Command R's layer, of which three of four have a sliding window and the
others know no positions.
"""

from satchel.formats.convert.mapping import (
    COHERE_KEYS,
    COHERE_RULES,
    DENSE_GUARDS,
    ArchMapping,
    ConfigCheck,
    ConfigReader,
    Key,
    listed_windows,
)
from satchel.runtime.layers.blocks import alternating
from satchel.runtime.models.command_r import CommandR

PERIOD = 4


def _extra(reader: ConfigReader) -> None:
    listed_windows(reader, reader.config.get("sliding_window_pattern") or PERIOD)


MAPPING = ArchMapping(
    classes=("Cohere2ForCausalLM",),
    model_type="cohere2",
    arch="cohere2",
    rules=COHERE_RULES,
    keys=(*COHERE_KEYS, Key("attention.sliding_window", ("sliding_window",))),
    guards=(
        *DENSE_GUARDS,
        ConfigCheck("rotary_pct", (1.0, 1, None)),
        ConfigCheck("use_qk_norm", (False, None)),
        ConfigCheck("use_parallel_block", (True, None)),
    ),
    extra=_extra,
)


class Cohere2(CommandR):
    def window(self, i: int) -> int:
        seen = self.hp.uint("attention.sliding_window", high=1 << 30)
        return seen if alternating(self, i, PERIOD) else 0

    def rotates(self, i: int) -> bool:
        return self.window(i) > 0
