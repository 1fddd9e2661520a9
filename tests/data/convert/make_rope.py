"""Writes rope.json beside this file: frequencies and factors that transformers makes of the cases in
tests/support/rope_cases.py; of LongRoPE those of a length up to the original one and of a longer one.

Run from the repository's root with torch and transformers installed: python tests/data/convert/make_rope.py
"""

import json
import sys
from pathlib import Path
from typing import Any

from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

sys.path[:0] = [str(Path(__file__).parents[2] / "support")]

import rope_cases  # noqa: E402


def made(case: str, length: int | None) -> dict[str, Any]:
    settings = {k: v for k, v in rope_cases.config(case).items() if k != "architectures"}
    config = AutoConfig.for_model(**settings)
    kind = config.rope_parameters["rope_type"]
    if kind == "default":
        kind = "linear"
        config.rope_parameters["factor"] = 1.0
    freq, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
    return {"freq": freq.tolist(), "factor": float(factor)}


def main() -> None:
    found = {case: made(case, None) for case in rope_cases.CASES}
    found |= {f"{case}, long": made(case, 8192) for case in rope_cases.CASES if case.startswith("longrope")}
    text = "\n".join(f"{json.dumps(case)}: {json.dumps(one)}," for case, one in found.items()).rstrip(",")
    rope_cases.STORED.write_text(f"{{\n{text}\n}}\n")


if __name__ == "__main__":
    main()
