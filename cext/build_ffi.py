"""Build step: turns include/hal.h into the cffi module (ABI mode, pure Python) and the generated C headers.

    build_ffi.py HAL_H QUANT_DIR OUT_PY OUT_INC_DIR

The module has the declarations of ../search/search.h too. hal_abi.h: HAL_ABI_HASH, of hal.h's tables and the
sampling stages of kernels/sample_stages.k.h. search_hash.h: SEARCH_HASH, of search.h. hal_ops.inc:
HAL_OP(NAME, name, argument bytes) per op. formats.h: includes every header of quant/. types.inc:
CPU_WEIGHT(stem, number, block, activations) and CPU_ONLY_ACT(stem, number, block) as the headers'
SATCHEL_WEIGHT_ and SATCHEL_ACTIVATION_ lines say. types.h: TYPE_stem, the same numbers as an enum.
products_<family>.inc: includes every file of the folder cpu/matmul/product/<family>/, or for "plain" defines
the products of the weights that are in none; products_<family>_table.inc: its
products. panel_defaults.inc: TAIL_, SPLIT_HALVES_, PACK_WORD_ and UNPACK_WORD_<format> where a header does
not define them. points.h: the codebooks of quant/grids.py as tables points_<format>, a word for a point.
"""

import hashlib
import re
import runpy
import sys
from pathlib import Path

import cffi


def abi_hash(text: str, stages: list[str]) -> str:
    """64 bits over the tables, comments and white space aside, and the sampling stages, as 16 hex digits."""
    tables = re.sub(r"/\*.*?\*/", "", text.split("/* ==== ops")[0], flags=re.S)
    return hashlib.sha256(" ".join([*tables.split(), *stages]).encode()).hexdigest()[:16]


def sampling_stages(text: str) -> list[str]:
    """Names of the sampling stages in the order of their numbers."""
    return re.findall(r"^ +X\((\w+)\)", text, re.M)


def ops(text: str) -> list[str]:
    """Op names in the order of the enum."""
    return re.findall(r"\bHAL_OP_([A-Z_]+)", text.split("/* ==== ops")[1])


def types(quant: Path) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """What the headers declare, by stem: number, block and (weights) activations; then activations only."""
    text = "".join(p.read_text() for p in sorted(quant.glob("*.h")))
    weights = {
        m[0]: m[1:] for m in re.findall(r"^#define SATCHEL_WEIGHT_(\w+) (\d+), (\d+), (\w+)", text, re.M)
    }
    only = {m[0]: m[1:] for m in re.findall(r"^#define SATCHEL_ACTIVATION_(\w+) (\d+), (\d+)", text, re.M)}
    return weights, only


def write_types(quant: Path, products: Path, include: Path) -> None:
    weights, only = types(quant)
    rows = [f"CPU_WEIGHT({stem}, {', '.join(row)})\n" for stem, row in weights.items()]
    rows += [
        "#ifdef CPU_ONLY_ACT\n",
        *(f"CPU_ONLY_ACT({s}, {', '.join(row)})\n" for s, row in only.items()),
        "#endif\n",
    ]
    write(include / "types.inc", "".join(rows))
    numbers = ", ".join(f"TYPE_{stem} = {row[0]}" for stem, row in {**weights, **only}.items())
    blocks = ", ".join(f"BLOCK_{stem} = {row[1]}" for stem, row in {**weights, **only}.items())
    write(include / "types.h", f"enum {{ {numbers} }};\nenum {{ {blocks} }};\n")
    defaults = {"TAIL": "0", "SPLIT_HALVES": "0", "PACK_WORD": "NULL", "UNPACK_WORD": "NULL"}
    write(
        include / "panel_defaults.inc",
        "".join(default(f"{k}_{s}", v) for s in weights for k, v in defaults.items()),
    )
    write_products(weights, products, include)


def write_products(weights: dict[str, list[str]], products: Path, include: Path) -> None:
    """What product_<family>.c includes for each folder of cpu/matmul/product/, and product_plain.c for
    formats that are in none.
    """
    known: set[str] = set()
    families = sorted(p for p in products.iterdir() if p.is_dir())
    for family in families:
        stems = sorted(p.stem for p in family.glob("*.h"))
        known.update(stems)
        lines = "".join(f'#include "matmul/product/{family.name}/{s}.h"\n' for s in stems)
        write(include / f"products_{family.name}.inc", lines)
        table = "".join(f"PRODUCT_{s},\n" for s in stems)
        write(include / f"products_{family.name}_table.inc", table + "{0}\n")
    plain = {s: w for s, w in weights.items() if s not in known}
    write(include / "products_plain.inc", "".join(f"PRODUCT_PLAIN({s}, {w[2]})\n" for s, w in plain.items()))
    table = "".join(f"PRODUCT_ENTRY({s}, {w[2]}),\n" for s, w in plain.items())
    write(include / "products_plain_table.inc", table + "{0}\n")


# Codebooks that permutations look up too, see cpu/matmul/points_at.h.
IN_PLANES = ("iq2_xxs", "iq3_xxs", "iq3_s")


def point_word(values: tuple[int, ...], point: tuple[int, ...]) -> int:
    """Which of the values each coordinate is, in four bits: coordinates i and 4 + i are the low and the high
    half of byte i.
    """
    return sum(values.index(x) << 8 * (i % 4) + 4 * (i // 4) for i, x in enumerate(point))


def point_planes(values: tuple[int, ...], point: tuple[int, ...]) -> tuple[int, int]:
    """The same in a byte for each half of the coordinates: four of two bits, or two of four."""
    half = len(point) // 2
    low, high = (
        sum(values.index(x) << 8 // half * i for i, x in enumerate(p)) for p in (point[:half], point[half:])
    )
    return low, high


def write_points(grids: Path, include: Path) -> None:
    """points.h from the module of codebooks, which is loaded by its path: nothing is installed yet."""
    module = runpy.run_path(str(grids))
    text = "#ifndef SATCHEL_POINTS_H\n#define SATCHEL_POINTS_H\n\n#include <stdint.h>\n\n"
    text += "#ifndef QUANT_TABLE\n#define QUANT_TABLE static const\n#endif\n"
    for name, packed in module["PACKED"].items():
        words = [f"{point_word(packed.values, p):#x}" for p in module["points"](name)]
        lines = (", ".join(words[i : i + 10]) for i in range(0, len(words), 10))
        table = ",\n    ".join(lines)
        text += f"\nQUANT_TABLE uint32_t points_{name}[{len(words)}] = {{\n    {table}}};\n"
        if name in IN_PLANES:
            planes = zip(*(point_planes(packed.values, p) for p in module["points"](name)), strict=True)
            rows = ",\n    ".join("{" + ", ".join(map(str, plane)) + "}" for plane in planes)
            kind = f"static const uint8_t planes_{name}[2][{len(words)}] __attribute__((aligned(64)))"
            text += f"#if defined(__AVX512VBMI__)\n{kind} = {{\n    {rows}}};\n#endif\n"
    write(include / "points.h", text + "\n#endif\n")


def default(name: str, value: str) -> str:
    return f"#ifndef {name}\n#define {name} {value}\n#endif\n"


def write(path: Path, text: str) -> None:
    """Writes the file only if its text changed, so that nothing is recompiled needlessly."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main(header: Path, quant: Path, module: Path, include: Path) -> None:
    text = header.read_text()
    names = ops(text)
    stages = sampling_stages((header.parents[1] / "kernels" / "sample_stages.k.h").read_text())
    found = abi_hash(text, stages)
    search = (quant.parent / "search" / "search.h").read_text()
    searches = abi_hash(search, [])
    ffi = cffi.FFI()
    ffi.cdef(text + search)
    ffi.set_source("satchel.cext._hal", None)
    module.parent.mkdir(parents=True, exist_ok=True)
    ffi.emit_python_code(str(module))
    extra = f"\nABI_HASH = 0x{found}\nSEARCH_HASH = 0x{searches}\n"
    extra += f"OPS = {tuple(name.lower() for name in names)!r}\n"
    write(module, "# mypy: ignore-errors\n" + module.read_text() + extra)
    include.mkdir(parents=True, exist_ok=True)
    write(include / "hal_abi.h", f"#define HAL_ABI_HASH 0x{found}ull\n")
    write(include / "search_hash.h", f"#define SEARCH_HASH 0x{searches}ull\n")
    sizes = {n: f"sizeof(arg_{n.lower()})" if f"arg_{n.lower()};" in text else "0" for n in names}
    write(include / "hal_ops.inc", "".join(f"HAL_OP({n}, {n.lower()}, {sizes[n]})\n" for n in names))
    stems = sorted(p.stem for p in quant.glob("*.h") if p.stem != "half")
    write(include / "formats.h", "".join(f'#include "{s}.h"\n' for s in stems))
    write_points(quant.resolve().parents[1] / "quant" / "grids.py", include)
    write_types(quant, quant.parent / "cpu" / "matmul" / "product", include)


if __name__ == "__main__":
    main(*(Path(a) for a in sys.argv[1:5]))
