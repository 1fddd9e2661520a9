"""Compiles the text of a Metal library as C++ for the mock: compile.py TEXT LIBRARY. It adds functions that
bind each kernel's arguments by their attributes. An error in the text is printed, and no library is written.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

KERNEL = re.compile(
    r"\[\[kernel, max_total_threads_per_threadgroup\(([\w *]+)\)\]\] void (\w+)\((.*?)\) \{", re.S
)
ATTRIBUTE = re.compile(r"^(.*?)(\w+) \[\[(\w+)(?:\((\d+)\))?\]\]$", re.S)
BOUND = {
    "threadgroup_position_in_grid": "uint3{(uint)m->group[0], (uint)m->group[1], (uint)m->group[2]}",
    "thread_index_in_threadgroup": "(uint)m->thread_",
    "threads_per_threadgroup": "uint3{(uint)m->threads, 1, 1}",
}
POINTER = re.compile(r"(\w+)\s+(?:const\s+)?(\w+)\s*[*&]\s*(?:const\s+)?\w+\s*[,;)=\[]")
SPACES = {"DEVICE", "LOCAL", "THREAD", "CONSTANT", "device", "threadgroup", "thread", "constant"}
FRONT = """
#include "metal_stdlib"
#pragma clang diagnostic ignored "-Wmisleading-indentation"
msl_words msl_given;
"""
BACK = """
struct msl_kernel { const char *name; void (*run)(void *const *, const self *); int threads, buffers; };
extern "C" __attribute__((visibility("default"))) const msl_kernel msl_kernels[] = {%s {0, 0, 0, 0}};
"""


def bound(kernel: str, parameter: str) -> str:
    """The argument for a parameter."""
    found = ATTRIBUTE.match(parameter.strip())
    if not found:
        sys.exit(f"kernel {kernel}: {parameter!r} has no attribute")
    kind, _, attribute, index = found.groups()
    if attribute == "buffer":
        pointer = f"({kind.replace('&', '*')})(uintptr_t)b[{index}]"
        return f"*{pointer}" if "&" in kind else pointer
    if attribute == "threadgroup":
        return f"({kind})(uintptr_t)m->local"
    if attribute not in BOUND:
        sys.exit(f"kernel {kernel}: this test knows no [[{attribute}]]")
    return BOUND[attribute]


def unqualified(text: str) -> list[str]:
    """Pointers and references without an address space, which MSL refuses."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/|\"[^\"]*\"", "", text, flags=re.S)
    words = (
        r"(?:f64\w*|u?int\d*_t|u?char|float|uint|ulong|ushort|half|block_\w+|gpu_\w+|arg_\w+|set|softmax|attended"
        r"|row_facts|self|operand|wave_tile|simdgroup_\w+|\w+_fragment)"
    )
    found = re.finditer(rf"(\w+)?[\s(,]+(const\s+)?({words})\s*([*&])\s*[\w)]", code)
    return [m.group(0) for m in found if is_bare(m)]


def is_bare(found: re.Match[str]) -> bool:
    """Whether this is a declaration and not a product after a cast, which looks like one."""
    return found.group(1) not in SPACES and not (found.group(4) == "&" and found.group(0).count("&&"))


def translate(text: str) -> str:
    """The text as C++, with a table of its kernels."""
    rows = []
    runs = []
    for threads, name, parameters in KERNEL.findall(text):
        arguments = ", ".join(bound(name, p) for p in re.split(r",(?![^\[]*\]\])", parameters))
        runs.append(f"static void {name}_run(void *const *b, const self *m) {{ {name}({arguments}); }}")
        rows.append(f'{{"{name}", {name}_run, {threads}, 1}},')
    if len(rows) != text.count("[[kernel"):
        sys.exit("a kernel is declared in a way that this test does not know")
    plain = re.sub(r"\[\[.*?\]\]", "", text.replace("#include <metal_stdlib>", FRONT))
    return plain + "\n".join(runs) + BACK % " ".join(rows)


def main(source: Path, out: Path) -> None:
    text = source.read_text()
    if bare := unqualified(text):
        sys.exit(f"pointer type must have explicit address space qualifier: {bare[0].strip()!r}")
    made = out.with_suffix(".cpp")
    made.write_text(translate(text))
    compiler = next(c for c in ("clang++-19", "clang++", "g++") if shutil.which(c))
    if compiler == "g++":  # hexadecimal floats, which MSL has, are an extension of GNU's there
        single = ["-std=gnu++14", "-fsingle-precision-constant"]
    else:
        single = ["-std=c++14", "-Xclang", "-cl-single-precision-constant"]
    words = [
        compiler,
        "-O1",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
        "-ffp-contract=off",
        *single,
    ]
    words += ["-fno-strict-aliasing", "-Wall", "-Wno-unused-function", "-Wno-unknown-pragmas", "-Werror"]
    done = subprocess.run(
        [*words, f"-I{Path(__file__).parent}", made, "-o", out], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr[:2000])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
