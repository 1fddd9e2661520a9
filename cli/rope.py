"""llama.cpp's options of RoPE scaling, which become metadata in place of the file's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from satchel.cli.groups import wrong
from satchel.runtime.option import check_options, option_field

SCALE, FREQ_SCALE = "--rope-scale", "--rope-freq-scale"


@dataclass(frozen=True, slots=True)
class RopeOptions:
    """Values in place of the file's rope.*; a negative number of YaRN's means the file's, as in llama.cpp."""

    rope_scaling: str = option_field(
        "",
        "RoPE scaling in place of the file's: none, linear or yarn.",
        "--rope-scaling",
        env="ROPE_SCALING_TYPE",
        choices=("", "none", "linear", "yarn"),
    )
    rope_scale: float | None = option_field(
        None,
        "Factor by which the context is extended; linear unless the file says otherwise.",
        SCALE,
        above=0,
    )
    rope_freq_base: float | None = option_field(
        None, "Base of RoPE's frequencies; 0: the file's.", "--rope-freq-base", low=0
    )
    rope_freq_scale: float | None = option_field(
        None, "1 / N is the factor of --rope-scale; 0: the file's.", FREQ_SCALE, low=0
    )
    yarn_orig_ctx: int | None = option_field(
        None, "YaRN: context that the model was trained for; 0: the file's.", "--yarn-orig-ctx", low=0
    )
    yarn_ext_factor: float | None = option_field(
        None, "YaRN: share of high frequencies that are kept; 0: none, linear.", "--yarn-ext-factor", low=-1
    )
    yarn_attn_factor: float | None = option_field(
        None, "YaRN: factor of the attention's magnitude.", "--yarn-attn-factor", low=-1
    )
    yarn_beta_slow: float | None = option_field(
        None, "YaRN: rotations below which a frequency is scaled wholly.", "--yarn-beta-slow", low=-1
    )
    yarn_beta_fast: float | None = option_field(
        None, "YaRN: rotations above which a frequency is kept.", "--yarn-beta-fast", low=-1
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.rope_scale is not None and self.rope_freq_scale:
            raise wrong(FREQ_SCALE, f"{SCALE} is given already, which is 1 / N")

    def overrides(self) -> list[str]:
        """The metadata, as --override-kv takes it."""
        return [f"{{arch}}.rope.{key}={value}" for key, value in self._values()]

    def _values(self) -> Iterator[tuple[str, str]]:
        factor = self.rope_scale or (1 / self.rope_freq_scale if self.rope_freq_scale else None)
        if self.rope_scaling:
            yield "scaling.type", f"str:{self.rope_scaling}"
        if factor is not None:
            # The older key makes the type linear in a file that has none.
            yield "scale_linear", f"float:{factor!r}"
            yield "scaling.factor", f"float:{factor!r}"
        if self.rope_freq_base:
            yield "freq_base", f"float:{self.rope_freq_base!r}"
        if self.yarn_orig_ctx:
            yield "scaling.original_context_length", f"int:{self.yarn_orig_ctx}"
        for key, number in (
            ("yarn_ext_factor", self.yarn_ext_factor),
            ("attn_factor", self.yarn_attn_factor),
            ("yarn_beta_slow", self.yarn_beta_slow),
            ("yarn_beta_fast", self.yarn_beta_fast),
        ):
            if number is not None and number >= 0:
                yield f"scaling.{key}", f"float:{number!r}"
