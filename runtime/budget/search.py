"""Searches the format of each tensor under a limit of bytes: quantization errors of all candidates, measured
divergence of a few, and the choice.

Tensors are measured one by one if the time allows, else in groups of one kind and neighbouring layers.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from satchel.errors import RequestError
from satchel.formats.gguf import GGUF
from satchel.formats.gguf.check import pad
from satchel.formats.quantizing.encode import Calibration, TensorEncoder, WithoutGptq
from satchel.formats.quantizing.plan import TensorPlan, tensor_bytes, writable
from satchel.quant import FORMATS
from satchel.quant.format import F32
from satchel.quant.recipes import is_quantizable
from satchel.runtime.budget.choose import Chosen, FormatOption, FrontierStep, choose, frontier, total_kld
from satchel.runtime.budget.curve import relative_error, share_out
from satchel.runtime.budget.probe import Exchange, Prober

WIDE = ("q2_k", "q3_k", "iq4_xs", "q4_k", "q5_k", "q6_k", "q8_0")
NARROW = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")  # if a row is not a multiple of 256 elements
SAMPLE = 1 << 18  # elements of a tensor that estimate its errors
AROUND = (-2, 0, 2)  # measured candidates, as offsets from the one nearest the wanted size
LAYER = re.compile(r"^blk\.(\d+)\.")
Progress = Callable[[int, int, str], None]  # done, total, what comes next


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Tensors of one kind that are measured together."""

    name: str
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TensorChoice:
    """A tensor of the result: its candidate formats and the chosen one."""

    name: str
    shape: tuple[int, ...]
    group: TensorGroup
    options: tuple[FormatOption, ...]
    chosen: FormatOption

    @property
    def bits(self) -> float:
        return 8 * self.chosen.nbytes / int(np.prod(self.shape))


@dataclass(frozen=True, slots=True)
class FormatSearchResult:
    """Result of the search."""

    rows: tuple[TensorChoice, ...]
    limit: int  # largest file, in bytes
    fixed: int  # bytes of the file that do not depend on the choice
    steps: tuple[FrontierStep, ...]  # the frontier from the smallest file to the best
    predicted: float  # divergence in nats per token
    evaluations: int
    seconds: float  # duration of the search

    @property
    def formats(self) -> dict[str, str]:
        return {row.name: row.chosen.format for row in self.rows}

    @property
    def file_bytes(self) -> int:
        return self.fixed + sum(row.chosen.nbytes for row in self.rows)

    def predict(self, formats: Mapping[str, str]) -> tuple[int, float] | None:
        """File bytes and divergence of another choice; None if it has a format that is not an option."""
        found = []
        for row in self.rows:
            option = next((o for o in row.options if o.format == formats.get(row.name)), None)
            if option is None:
                return None
            found.append(option)
        return self.fixed + sum(o.nbytes for o in found), sum(o.kld for o in found)


def candidates(source: str, shape: Sequence[int], wanted: Sequence[str] = ()) -> tuple[str, ...]:
    """Formats that fit a tensor's rows, the source's own last. wanted: replaces the default candidates."""
    names = wanted or (WIDE if shape[-1] % 256 == 0 else NARROW)
    known = [n for n in names if n in writable() and shape[-1] % FORMATS[n].block == 0]
    smaller = [n for n in known if FORMATS[n].row_bytes(shape[-1]) < FORMATS[source].row_bytes(shape[-1])]
    return (*dict.fromkeys(sorted(smaller, key=lambda n: FORMATS[n].row_bytes(shape[-1]))), source)


def kind_of(name: str) -> str:
    return LAYER.sub("", name).removesuffix(".weight")


def layer_of(name: str) -> int:
    found = LAYER.match(name)
    return int(found[1]) if found else -1


def group(names: Sequence[str], most: int) -> list[TensorGroup]:
    """About `most` groups of tensors of one kind, in the order of layers, of even size. Every kind has at
    least one.
    """
    kinds: dict[str, list[str]] = {}
    for name in sorted(names, key=layer_of):
        kinds.setdefault(kind_of(name), []).append(name)
    groups = []
    for kind, members in kinds.items():
        count = min(len(members), max(1, most * len(members) // len(names)))
        for part in np.array_split(np.array(members, object), count):
            first, last = layer_of(part[0]), layer_of(part[-1])
            where = "" if first < 0 else f"{first}." if first == last else f"{first}-{last}."
            groups.append(TensorGroup(f"{where}{kind}", tuple(part)))
    return groups


class FormatSearch:
    """Search over the tensors of an open file; `prober` has the same file loaded."""

    def __init__(
        self,
        gguf: GGUF,
        prober: Prober,
        *,
        calibration: Calibration | None = None,
        wanted: Sequence[str] = (),
        held: Mapping[str, str] | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        """wanted: candidates in place of the usual. held: tensors whose format stands, by name. Of the
        usual candidates one that the device can't run is left out; RequestError where it was asked for.
        """
        self.gguf, self.prober = gguf, prober
        self.calibration, self.gptq = calibration, True
        self.threads = threads or os.cpu_count() or 1
        self.progress = progress or (lambda done, total, what: None)
        self.candidates: dict[str, tuple[str, ...]] = {}
        self._known: dict[str, bool] = {}
        for name, info in gguf.tensors.items():
            if 0 in info.shape or not is_quantizable(name, info.shape):
                continue
            fixed = (held or {}).get(name)
            found = (fixed,) if fixed else candidates(info.format, info.shape, wanted)
            self.candidates[name] = tuple(f for f in found if self._runs(name, f))
            missing = sorted(set(found) - set(self.candidates[name]))
            if missing and (fixed or wanted):
                raise RequestError(
                    f"{name}: this machine has no products for {missing[0]}, so its divergence can't be "
                    "measured; choose among other formats"
                )
        if not self.candidates:
            raise RequestError(f"{gguf.path}: expected matrices to choose formats for, found none")

    def run(self, limit: int, fixed: int, seconds: float) -> FormatSearchResult:
        """limit: bytes of the file; fixed: bytes that do not depend on the choice; seconds: approximate time
        for measurements. Raises RequestError if the smallest choice is larger.
        """
        started = time.monotonic()
        self._check_limit(limit, fixed)
        errors = self._errors()
        free = [name for name in self.candidates if self._smaller(name)]
        share = (limit - fixed) / max(1, sum(self.gguf.tensors[n].nbytes for n in self.candidates))
        probes = int(max(seconds / self._time_one(free, share, seconds), 1)) if free else 0
        groups = group(free, max(1, probes // len(AROUND))) if free else []
        offsets = AROUND if probes >= len(AROUND) * len(groups) else (0,)
        measured = self._measure(groups, share, offsets)
        klds: dict[str, dict[str, float]] = {}
        for one, found in zip(groups, measured, strict=True):
            klds |= share_out({n: errors[n] for n in one.tensors}, found)
        options = {name: self._options(name, errors[name], klds.get(name, {})) for name in self.candidates}
        chosen = choose(options, limit - fixed)
        rows = self._rows(groups, options, chosen)
        count = sum(map(len, measured)) + 1
        steps = [FrontierStep(s.name, s.option, s.nbytes + fixed, s.kld) for s in frontier(options)]
        took = time.monotonic() - started
        return FormatSearchResult(rows, limit, fixed, tuple(steps), total_kld(chosen), count, took)

    def _smaller(self, name: str) -> list[str]:
        """The candidates other than the tensor's own format."""
        return [f for f in self.candidates[name] if f != self.gguf.tensors[name].format]

    def _runs(self, name: str, format: str) -> bool:
        """Whether the device has products for a format; each is asked once."""
        if format not in self._known:
            self._known[format] = self.prober.runs(name, format)
        return self._known[format]

    def _check_limit(self, limit: int, fixed: int) -> None:
        least = fixed + sum(
            min(self.bytes_in(name, f) for f in found) for name, found in self.candidates.items()
        )
        if least > limit:
            raise RequestError(
                f"{self.gguf.path}: a file of {limit:,} bytes is too small for the candidates: the least "
                f"possible is {least:,}; allow more, or smaller formats by --candidates"
            )

    def bytes_in(self, name: str, format: str) -> int:
        """Bytes of a tensor in the file, with the padding before the next one."""
        size = tensor_bytes(FORMATS[format], self.gguf.tensors[name].shape)
        return size + pad(size, self.gguf.alignment)

    def _options(
        self, name: str, errors: Mapping[str, float], klds: Mapping[str, float]
    ) -> list[FormatOption]:
        return [
            FormatOption(f, self.bytes_in(name, f), errors[f], klds.get(f, 0.0))
            for f in self.candidates[name]
        ]

    def _time_one(self, names: Sequence[str], share: float, seconds: float) -> float:
        """Seconds of one measurement, with the encoding of a tensor of medium size.

        Measurements skip GPTQ if encoding alone would take longer than `seconds`; the file gets it in any
        case.
        """
        name = sorted(names, key=lambda n: self.gguf.tensors[n].nbytes)[len(names) // 2]
        one = TensorGroup(name, (name,))
        self.prober.measure({})  # warm-up
        started = time.monotonic()
        self.prober.measure({})
        between = time.monotonic()
        encoded = self._probed(one, share, (0,))[0]
        with ThreadPoolExecutor(self.threads) as pool:
            encoder = TensorEncoder(self.gguf, pool, self.threads, self.calibration)
            self.prober.measure(dict(self._exchanges(encoder, one, encoded)))
        both = time.monotonic() - between
        bytes_in_all = sum(self.gguf.tensors[n].nbytes for n in names)
        encoding = max(0.0, both - (between - started)) * bytes_in_all / self.gguf.tensors[name].nbytes
        if self.calibration and len(AROUND) * encoding > seconds:
            self.calibration, self.gptq = WithoutGptq(self.calibration), False
            return between - started
        return both

    def _errors(self) -> dict[str, dict[str, float]]:
        """Relative squared error of each candidate, on a sample of rows."""
        found: dict[str, dict[str, float]] = {}
        with ThreadPoolExecutor(self.threads) as pool:
            for done, name in enumerate(self.candidates):
                self.progress(done, len(self.candidates), f"errors of {name}")
                x, importance = self._sample(name), self._importance(name)
                source = self.gguf.tensors[name].format
                jobs = {f: pool.submit(relative_error, f, x, importance) for f in self._smaller(name)}
                found[name] = {f: job.result() for f, job in jobs.items()} | {source: 0.0}
        return found

    def _sample(self, name: str) -> F32:
        info = self.gguf.tensors[name]
        blocks = self.gguf.array(name).reshape(-1, info.shape[-1] // FORMATS[info.format].block)
        rows = max(1, SAMPLE // info.shape[-1])
        return FORMATS[info.format].decode(np.array(blocks[:: max(1, len(blocks) // rows)]))

    def _importance(self, name: str) -> F32 | None:
        found = self.calibration.diagonal(name) if self.calibration else None
        if found is None:
            return None
        row = self.gguf.tensors[name].shape[-1]
        mean: F32 = found.reshape(-1, row).mean(axis=0).astype(np.float32)
        return mean

    def _measure(
        self, groups: Sequence[TensorGroup], share: float, offsets: Sequence[int]
    ) -> list[dict[str, float]]:
        plans = [(one, self._probed(one, share, offsets)) for one in groups]
        total, done = sum(len(formats) for _, formats in plans), 0
        measured = []
        with ThreadPoolExecutor(self.threads) as pool:
            encoder = TensorEncoder(self.gguf, pool, self.threads, self.calibration)
            for one, formats in plans:
                found = {}
                for format in formats:
                    self.progress(done, total, f"{one.name} in {format}")
                    found[format] = self.prober.measure(dict(self._exchanges(encoder, one, format)))
                    done += 1
                measured.append(found)
        self.progress(total, total, "")
        return measured

    def _probed(self, one: TensorGroup, share: float, offsets: Sequence[int]) -> list[str]:
        """Formats to measure: the one nearest to this share of the source's bytes, and some around it."""
        name = one.tensors[0]
        formats = self._smaller(name)
        wanted = share * self.bytes_in(name, self.gguf.tensors[name].format)
        middle = min(range(len(formats)), key=lambda i: abs(self.bytes_in(name, formats[i]) - wanted))
        places = {min(max(middle + o, 0), len(formats) - 1) for o in offsets}
        return [formats[i] for i in sorted(places)]

    def _exchanges(
        self, encoder: TensorEncoder, one: TensorGroup, format: str
    ) -> Iterator[tuple[str, Exchange]]:
        for name in one.tensors:
            info = self.gguf.tensors[name]
            after = tensor_bytes(FORMATS[format], info.shape)
            choice = TensorPlan(name, info.shape, info.format, format, info.nbytes, after)
            yield name, Exchange(format, encoder.blocks(choice))

    def _rows(
        self, groups: Sequence[TensorGroup], options: Mapping[str, Sequence[FormatOption]], chosen: Chosen
    ) -> tuple[TensorChoice, ...]:
        of = {name: one for one in groups for name in one.tensors}
        return tuple(
            TensorChoice(
                n, self.gguf.tensors[n].shape, of.get(n, TensorGroup("held", (n,))), tuple(found), chosen[n]
            )
            for n, found in options.items()
        )
