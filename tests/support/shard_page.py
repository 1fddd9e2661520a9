"""Writes tests/data/shards.md: what tensor parallelism divides in each architecture's tiny model."""

from __future__ import annotations

from pathlib import Path

import shard_cases

from satchel.runtime.layers.arch import architectures

PAGE = Path(__file__).parent.parent / "data" / "shards.md"
HEAD = """# What tensor parallelism divides

`python tests/support/shard_page.py` writes this table from the tiny model of each architecture among two
ranks; `tests/runtime/shard/test_shard_models.py` compares it. The columns: all-reduces of a layer, and those
beside the layers; gathers of a step; the share of the matrices' bytes that is divided; matrices divided by
experts; those that are whole, and why.

| architecture | a layer | beside | gathers | divided | by experts | whole |
| --- | --: | --: | --: | --: | --- | --- |
"""


def page() -> str:
    return HEAD + "".join(f"| {shard_cases.golden(arch, 2)} |\n" for arch in architectures())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
