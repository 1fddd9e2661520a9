"""Satchel's quantizer and llama.cpp's side by side: files with the same format for each tensor, and the KL
divergence of each from the source model.

    python bench/quality.py -m MODEL -e TEST {-f CALIBRATION | --imatrix FILE | --plain}
                            [--types Q4_K_M,Q3_K_M,Q2_K] [--weights-alone] [--chunks 96] [--windows 34]
                            [--work DIR] [--json FILE]

Needs `pip install 'satchel[bench]'` (llama-cpp-python). Both use importance data of the same text and run:
llama.cpp the squares of the columns, as its own tool gathers them; Satchel also the products of columns. With
--plain neither uses any. The code of `satchel perplexity` measures the divergence of both, on a text that
neither has seen.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from one_line import errors_in_one_line

from satchel.cli.commands.perplexity import begin, read_text
from satchel.errors import RequestError
from satchel.formats.gguf import GGUF, TensorSource, open_gguf, write_gguf
from satchel.formats.imatrix import Importance, Origin, open_importance, write_importance
from satchel.formats.logits import open_logits
from satchel.formats.quantize import write
from satchel.formats.quantizing.plan import QuantizeOptions
from satchel.quant import FORMATS
from satchel.quant.format import F32
from satchel.quant.recipes import Recipe
from satchel.runtime.api.model import Model
from satchel.runtime.tasks.imatrix import Observed, choose_products, collect
from satchel.runtime.tasks.perplexity import diverge, windows, write_base
from satchel.store.resolve import default_model

CONTEXT = 512
PRODUCTS = 8 << 30  # bytes that the products of columns may take
# Values of general.file_type.
TYPES = {
    "Q8_0": 7, "Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12,
    "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """The quality of one file."""

    type: str
    maker: str
    bytes: int
    seconds: float
    kld: float  # mean, nats per token
    kld_error: float  # its standard error
    same_top: float  # share of positions, of 1
    ppl: float


def gather(model: Path, text: str, chunks: int, path: Path) -> None:
    """Importance data of the text's first windows."""
    with Observed.load(model, context=CONTEXT) as observed:
        cut = windows(observed.tokenize(text), CONTEXT, chunks)
        wanted, _ = choose_products(observed.taps, PRODUCTS)
        sums = collect(observed, cut, begin(observed), wanted)
    write_importance(path, sums, Origin(("calibration",), len(cut), CONTEXT))


@contextmanager
def quiet(llama: object) -> Iterator[None]:
    """Silences llama.cpp, which prints a line per tensor."""
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    silent = kind(lambda level, text, data: None)
    llama.llama_log_set(silent, ctypes.c_void_p())  # type: ignore[attr-defined]
    yield
    llama.llama_log_set(kind(), ctypes.c_void_p())  # type: ignore[attr-defined]


def by_llama(source: Path, target: Path, type: str, data: Importance | None) -> None:
    """llama.cpp's file of this type, with the squares of `data` as importance."""
    import llama_cpp as llama

    params = llama.llama_model_quantize_default_params()
    params.nthread, params.ftype = 0, TYPES[type]
    kept = []
    if data is not None:
        table = (llama.llama_model_imatrix_data * (len(data.weights) + 1))()
        for entry, name in zip(table, data.weights, strict=False):
            values = data.diagonal(name)
            if values is not None:
                kept.append(values)
                entry.name, entry.size = name.encode(), values.size
                entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        params.imatrix = table
    with quiet(llama):
        code = llama.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params))
    if code:
        raise RequestError(f"llama.cpp could not make {type} of {source}: code {code}")


def by_satchel(source: Path, target: Path, type: str, data: Importance | None, other: Path) -> None:
    """Satchel's file, each tensor in the format that it has in `other`."""
    with open_gguf(other) as gguf, open_gguf(source) as original:
        formats = {
            name: info.format
            for name, info in gguf.tensors.items()
            if info.format != original.info(name).format
        }
    recipe = Recipe(type, TYPES[type], "f32", "f32")
    write(source, target, QuantizeOptions(recipe, pure=False, formats=formats), importance=data)


def decode_file(path: Path, target: Path) -> None:
    """The same model with every block format decoded to float32."""
    with open_gguf(path) as gguf:
        tensors = []
        for info in gguf.tensors.values():
            plain = FORMATS[info.format].block == 1
            data = partial(gguf.chunks if plain else partial(decoded, gguf), info.name)
            tensors.append(TensorSource(info.name, info.shape, info.format if plain else "f32", data))
        write_gguf(target, gguf.metadata, tensors)


def decoded(gguf: GGUF, name: str) -> Iterator[F32]:
    for row in gguf.array(name):
        yield FORMATS[gguf.info(name).format].decode(row)


def score(path: Path, base: Path, weights_alone: bool) -> tuple[float, float, float, float]:
    """Mean divergence, its error, share of equal top tokens, perplexity. weights_alone: of the decoded file,
    whose activations are not rounded to 8 bits.
    """
    logits = open_logits(base)
    if weights_alone:
        wide = path.with_name("decoded.gguf")
        decode_file(path, wide)
        path = wide
    with Model.load(path, context=logits.context) as model:
        ppl, kld = diverge(model.engine, logits, model.arch.vocab, begin(model))
    return kld.kld_mean, kld.kld_error, kld.same_top, ppl.ppl


def compare(
    source: Path, types: Sequence[str], data: Importance | None, base: Path, weights_alone: bool
) -> Iterator[Result]:
    """Two results for each type, llama.cpp's first. The files are written beside the base."""
    work = base.parent
    for type in types:
        theirs, ours = work / f"llama.cpp-{type}.gguf", work / f"satchel-{type}.gguf"
        for maker, path in (("llama.cpp", theirs), ("satchel", ours)):
            started = time.perf_counter()
            if maker == "llama.cpp":
                by_llama(source, path, type, data)
            else:
                by_satchel(source, path, type, data, theirs)
            seconds = time.perf_counter() - started
            yield Result(type, maker, path.stat().st_size, seconds, *score(path, base, weights_alone))


def show(results: Sequence[Result]) -> None:
    print("| type | made by | bytes | s | KLD mean | +/- | of llama.cpp's | same top | PPL |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|")
    for i, r in enumerate(results):
        share = f"{r.kld / results[i - 1].kld:.3f}" if i % 2 else ""
        print(
            f"| {r.type} | {r.maker} | {r.bytes:,} | {r.seconds:.1f} | {r.kld:.5f} | {r.kld_error:.5f} |"
            f" {share} | {100 * r.same_top:.1f} % | {r.ppl:.2f} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, default=None, help="F32, F16 or BF16; default: bundled")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("-f", "--file", type=Path, default=None, help="calibration text")
    given.add_argument("--imatrix", type=Path, default=None, help="importance data that was gathered before")
    given.add_argument("--plain", action="store_true", help="no importance data for either")
    parser.add_argument("-e", "--evaluate", type=Path, required=True, help="test text")
    parser.add_argument("--types", default="Q8_0,Q6_K,Q5_K_M,Q4_K_M,Q4_0,Q3_K_M,Q2_K")
    parser.add_argument("--weights-alone", action="store_true", help="score the files decoded to float32")
    parser.add_argument("--chunks", type=int, default=96, help="windows of calibration; -1: all")
    parser.add_argument("--windows", type=int, default=34, help="windows of the test; -1: all")
    parser.add_argument("--work", type=Path, default=Path("build/quality"), help="folder for the files")
    parser.add_argument("--json", type=Path, default=None, help="write the results here too")
    args = parser.parse_args()
    types = args.types.split(",")
    unknown = [t for t in types if t not in TYPES]
    if unknown:
        parser.error(f"--types: {unknown[0]}: expected some of {', '.join(TYPES)}")
    args.work.mkdir(parents=True, exist_ok=True)
    source, base = args.model or default_model(), args.work / "base.logits"
    with Model.load(source, context=CONTEXT) as model:
        cut = windows(model.tokenize(read_text(args.evaluate)), CONTEXT, args.windows)
        write_base(base, model.engine, cut, model.arch.vocab, begin(model))
    data = None
    if not args.plain:
        gathered = args.imatrix or args.work / "imatrix.gguf"
        if args.file:
            gather(source, read_text(args.file), args.chunks, gathered)
        data = open_importance(gathered)
    results = []
    for result in compare(source, types, data, base, args.weights_alone):
        results.append(result)
        print(f"{result.type} by {result.maker}: KLD {result.kld:.5f}", file=sys.stderr, flush=True)
    show(results)
    if args.json:
        args.json.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    with errors_in_one_line():
        sys.exit(main())
