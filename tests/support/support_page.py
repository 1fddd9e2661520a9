"""Generates the tables of docs/support.md: which architectures and which weight formats run on which
backends. These are asked for the steps of tiny models, and for products with each format.

`python tests/support/support_page.py` writes the tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import tiny
from doc_tables import replaced
from kernel_cases import CASES
from models_page import family
from one_step import Case, generator, refused

from satchel.quant import FORMATS
from satchel.runtime.compiler.target import DeviceTarget
from satchel.runtime.device.device import Device
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.graph import LEAVES, Node, rewrite, toposort
from satchel.runtime.layers.arch import Cache, architectures
from satchel.runtime.ops import OPS

PAGE = Path(__file__).parents[2] / "docs" / "support.md"
# The emulated GPU has the portable kernels, which all vendors' backends have.
PORTABLE = "emulated"
BEGINS = ("<!-- architectures -->\n", "<!-- formats -->\n")
END = "<!-- end -->\n"


def lacking(arch: str, device: Device) -> tuple[str, ...]:
    """The ops of a tiny model of this architecture that the device leaves to the CPU."""
    target, cache = DeviceTarget(device), Cache(32, 1)

    def parts(node: Node, src: tuple[Node, ...]) -> Node | None:
        made = None if node.op in LEAVES else OPS[node.op].parts
        if made is None or not target.refusal(node):
            return None
        node.graph.label = node.name
        return made(*src, **dict(node.args))

    graph = tiny.build(arch, tiny.weights(arch), cache)
    steps = toposort(rewrite(graph.roots("tokens"), parts))
    found = {n.op for n in steps if n.op not in LEAVES and not OPS[n.op].view and target.refusal(n)}
    return tuple(sorted(found))


def multiplied(device: Device) -> set[str]:
    """The formats of weights that the device multiplies, with float32 activations or the format's."""
    found = set()
    for case in CASES["linear"](generator("linear")):
        if not all(refused(device, "linear", one, pad=0) for one in (case, plain(case))):
            found |= {format for _, format in case.inputs[1:]}
    return found


def plain(case: Case) -> Case:
    """The call with float32 activations."""
    (x, format), *weights = case.inputs
    return replace(case, inputs=((FORMATS[format].decode(x), "f32"), *weights))


def architecture_table() -> Iterator[str]:
    yield "| architecture | families | CPU | portable GPU kernels |\n|---|---|---|---|\n"
    with find_backend("cpu").open() as cpu, find_backend(PORTABLE).open() as gpu:
        for arch in architectures():
            assert not lacking(arch, cpu)
            left = ", ".join(f"`{op}`" for op in lacking(arch, gpu))
            yield f"| `{arch}` | {family(arch)} | yes | {f'but {left}' if left else 'yes'} |\n"


def format_table() -> Iterator[str]:
    yield "| format | bits a weight | CPU | portable GPU kernels | `satchel quantize` |\n"
    yield "|---|--:|---|---|---|\n"
    with find_backend("cpu").open() as cpu, find_backend(PORTABLE).open() as gpu:
        able = multiplied(cpu), multiplied(gpu)
    for name, format in FORMATS.items():
        if format.weights:
            does = (*(name in one for one in able), format.encode is not None)
            bits = f"{8 * format.block_bytes / format.block:.4g}"
            yield f"| `{name}` | {bits} | {' | '.join('yes' if one else '–' for one in does)} |\n"


def page(text: str) -> str:
    """The page with new tables."""
    for begin, table in zip(BEGINS, (architecture_table, format_table), strict=True):
        text = replaced(text, begin, "".join(table()), END)
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
