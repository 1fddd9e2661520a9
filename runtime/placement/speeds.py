"""Measures a device's speed on a model's layers, using a few of them with random weights, and caches it in
the user's cache folder.

The layers have the model's shapes and formats and run through its own plans, so the time includes fused steps
and attention. Before each step of one token on the host other memory goes through the processor's caches, for
a model's weights are not in them either; a cache may keep what is read again and again all the same, so the
layers are larger than the caches. Two numbers of layers are run: the difference is the layers' time, the rest
is the fixed start of a device's turn.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from functools import cache, partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from satchel.errors import DeviceError, RequestError
from satchel.formats.gguf import GGUF, Metadata
from satchel.formats.gguf.atomic import replace_files, write_all
from satchel.quant import FORMATS
from satchel.runtime.api.options import Options
from satchel.runtime.device.device import OUT, PREFETCH, Buffer, Device
from satchel.runtime.device.group import GroupDevice, members_of
from satchel.runtime.device.nccl import nccl_asked
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import Engine
from satchel.runtime.graph import Array, Type
from satchel.runtime.layers.arch import Cache, HParams, find_arch
from satchel.runtime.net.device import NetDevice
from satchel.runtime.placement.devices import apart, open_one
from satchel.runtime.placement.options import read_size
from satchel.runtime.placement.predict import PROMPT, Speed
from satchel.runtime.sampling import Sampling
from satchel.runtime.weights.resident import Uploaded
from satchel.runtime.weights.streamed import layer_number
from satchel.runtime.weights.there import model_of
from satchel.runtime.weights.weights import PART_ROWS, FileWeights

ENOUGH = 192 << 20  # bytes that a token reads of the layers that are run, at least
OVER = 3  # and on a processor as many times its caches
MOST = 2 << 30  # bytes of these layers, at most
CACHES = 2  # what goes through the processor's caches before a step, in their sizes
VERSION = 8  # of the measurement; another version is measured again
SHARED = "attention.shared_kv_layers"  # so many of the last layers have no keys and values of their own
# Tensors of no layer of which a side has numbers for each: that side.
PER_LAYER = {"per_layer_token_embd.weight": 1, "per_layer_model_proj.weight": 0}
FEWER = 2  # ratio of the two numbers of layers
ROWS = 16  # distinct rows of a random matrix
ROUTER = "ffn_gate_inp.weight"  # its rows are all distinct, so that tokens choose different experts
EMBEDDINGS = "token_embd.weight"  # no two tokens of a prompt are the same, for the same reason
LINK = 32 << 20  # bytes of the timed copy
DIRECT = 128 << 20  # bytes of the timed copy from locked pages: several pieces that are packed on the way
DECODES, PROMPTS = 9, 3  # timed steps; their median counts
GREEDY = Sampling(temperature=0.0)
Open = Callable[[], Device]


@dataclass(frozen=True, slots=True)
class _Span:
    """The layers of a file that are run: `kept` of `whole` from `start` on."""

    start: int
    kept: int
    whole: int

    def inside(self, name: str) -> str | None:
        """A tensor's name among these layers, counted from 0; None for one of another layer."""
        number = layer_number(name)
        if number is None:
            return name
        found = number - self.start
        return _renumbered(name, found) if 0 <= found < self.kept else None

    def outside(self, name: str) -> str:
        """The name in the file."""
        number = layer_number(name)
        return name if number is None else _renumbered(name, number + self.start)


def _renumbered(name: str, layer: int) -> str:
    _, _, *rest = name.split(".")
    return ".".join(["blk", str(layer), *rest])


class _Sliced(HParams):
    """Hyper-parameters of a file, restricted to some layers."""

    all_layers = False

    def __init__(self, metadata: Metadata, arch: str, span: _Span) -> None:
        super().__init__(metadata, arch)
        self.span = span

    def uint(self, key: str, default: int | None = None, *, low: int = 1, high: int = 1 << 24) -> int:
        if key == "block_count":
            return self.span.kept
        found = super().uint(key, default, low=low, high=high)
        if key == "leading_dense_block_count":
            return max(0, found - self.span.start)
        return 0 if key == SHARED else found  # _layers() ends before those

    def each_layer(self, key: str, layers: int, default: int | None = None, low: int = 1) -> tuple[int, ...]:
        found = super().each_layer(key, self.span.whole, default, low)
        return found[self.span.start : self.span.start + layers]

    def flags(self, key: str, layers: int) -> tuple[bool, ...]:
        return super().flags(key, self.span.whole)[self.span.start : self.span.start + layers]


class _Slice(FileWeights):
    """A file's tensors of some layers, and those of none."""

    def __init__(self, gguf: GGUF, span: _Span) -> None:
        super().__init__(gguf)
        self.span = span

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(found for n in super().names if (found := self.span.inside(n)) is not None)

    def type(self, name: str) -> Type | None:
        found, side = super().type(self.span.outside(name)), PER_LAYER.get(name)
        if found is None or side is None:
            return found
        shape = [d for d in found.shape if isinstance(d, int)]
        shape[side] = shape[side] // self.span.whole * self.span.kept
        return Type(tuple(shape), found.format)

    def array(self, name: str) -> Array:
        return super().array(self.span.outside(name))


class _MadeUp(Mapping[str, Array]):
    """Small random weights of these types, generated on access."""

    def __init__(self, weights: _Slice) -> None:
        self.types = {name: found for name in weights.names if (found := weights.type(name)) is not None}
        self._rows: dict[tuple[str, int, int], Array] = {}

    def __getitem__(self, name: str) -> Array:
        type = self.types[name]
        sizes = [d for d in type.shape if isinstance(d, int)]
        count = int(np.prod(sizes[:-1]))
        distinct = count if name.endswith(ROUTER) else PROMPT if name == EMBEDDINGS else ROWS
        rows = self._some(type, distinct, sizes[-1]).reshape(-1).view(np.uint8)
        blocks = np.resize(rows, rows.size // distinct * count).view(FORMATS[type.format].dtype)
        return blocks.reshape(*sizes[:-1], -1)

    def _some(self, type: Type, count: int, width: int) -> Array:
        key = (type.format, count, width)
        if key not in self._rows:
            values = np.random.default_rng(len(self._rows)).standard_normal((count, width), np.float32) * 0.05
            encode = FORMATS[type.format].encode
            blank = np.zeros((count, FORMATS[type.format].row_bytes(width)), np.uint8)
            self._rows[key] = blank if encode is None else encode(values, None)
        return self._rows[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.types)

    def __len__(self) -> int:
        return len(self.types)


def measured(gguf: GGUF, options: Options) -> Callable[[Device], Speed]:
    """Function that gives a device's speed with a model loaded under these options."""

    def of(device: Device) -> Speed:
        if isinstance(device, NetDevice):
            return _speed_there(gguf, device, options)
        again = partial(open_again, options, device)
        return speed_of(gguf, device, again, repack=options.repack, activations=options.activations)

    return of


def _speed_there(gguf: GGUF, device: NetDevice, options: Options) -> Speed:
    """Speed of a device of another host, which measures it; the link to it is measured from here."""
    told = device.speed(model_of(gguf), options.repack, options.activations)
    found = _known(told)
    if found is None:
        raise DeviceError(f"device {device.name}: its speed is {told!r:.80}, which is not understood")
    link, latency = link_to(device)
    return replace(found, link=link, latency=latency, direct=0.0)


def open_again(options: Options, device: Device) -> Device:
    """The device, or the group of devices, opened anew."""
    found: list[Device] = []
    try:
        for one in members_of(device):
            found.append(open_one(options, one.backend, one.index))
        return GroupDevice(found, device.shares) if isinstance(device, GroupDevice) else found[0]
    except BaseException:
        for one in found:
            one.close()
        raise


def speed_of(
    gguf: GGUF,
    device: Device,
    open: Open,
    *,
    repack: bool = True,
    activations: int = 8,
    cache: Path | None = None,
) -> Speed:
    """Speed from the cache file, or measured on a device opened for it. cache: the cache file; None: the
    user's.
    """
    kept = _layers(gguf, 0 if apart(device) else processor_caches())
    path, key = cache or cache_file(), _key(gguf, device, kept, repack, activations)
    found = _known(read_cache(path).get(key))
    if found is None:
        found = _measure(gguf, open, kept, repack, activations)
        write_cache(path, read_cache(path) | {key: astuple(found)})
    return found


def _known(entry: object) -> Speed | None:
    """A cached entry; None if it cannot be parsed."""
    if not isinstance(entry, list) or len(entry) != 8:
        return None
    pairs, rest = entry[:2], entry[2:]
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        return None
    (one, many), (head, heads) = pairs
    if not all(isinstance(x, float | int) and x >= 0 for x in (one, many, head, heads, *rest)):
        return None
    return Speed((one, many), (head, heads), *rest)


def _mixture(gguf: GGUF) -> tuple[int, int]:
    """The first layer to run, and of how many layers at least one has experts: the dense layers with which a
    mixture begins say little of the others. (0, 1) for a model without experts.
    """
    numbers = {layer_number(name) for name in gguf.tensors if "_exps." in name}
    layers = sorted(n for n in numbers if n is not None)
    period = layers[1] - layers[0] if len(layers) > 1 else 1
    return max(0, layers[0] + 1 - period) if layers else 0, period


def _layers(gguf: GGUF, caches: int) -> int:
    """Number of layers to run, with experts among them where the model has any: at least FEWER, and so many
    that a token reads ENOUGH of them, and OVER times these caches, as far as all of them are not more than
    MOST.
    """
    name = gguf.metadata.get_str("general.architecture")
    hp = HParams(gguf.metadata, name)
    whole, shared = hp.uint("block_count", high=512), hp.uint(SHARED, 0, low=0)
    inner = {n: info.nbytes for n, info in gguf.tensors.items() if n.startswith("blk.")}
    size, experts = sum(inner.values()), sum(n for name, n in inner.items() if "_exps." in name)
    unread = experts - experts * hp.uint("expert_used_count") // hp.uint("expert_count") if experts else 0
    start, period = _mixture(gguf)

    def layers_of(enough: int, of: int) -> int:
        return period * -(-enough * whole // max(1, of) // period)

    enough = layers_of(max(ENOUGH, OVER * caches), size - unread)
    wanted = min(max(FEWER * period, enough), layers_of(MOST, size))
    return max(1, min(wanted, whole - shared - start))


@cache
def processor_caches(cpus: Path = Path("/sys/devices/system/cpu")) -> int:
    """Bytes of the last-level caches of all processor cores together; what is not known counts 0."""
    found: dict[str, int] = {}
    for level in cpus.glob("cpu[0-9]*/cache/index3"):
        with suppress(OSError, RequestError):
            found[(level / "shared_cpu_list").read_text()] = read_size((level / "size").read_text())
    return sum(found.values())


def _key(gguf: GGUF, device: Device, kept: int, repack: bool, activations: int) -> str:
    info = device.info()
    types = [(n, *t.shape, t.format) for n, t in gguf.tensors.items()]
    about = [VERSION, device.backend.name, info.name, info.variant, info.threads, kept, repack, activations]
    if isinstance(device, GroupDevice):
        about += group_key(device)
    return hashlib.sha256(json.dumps([*about, types]).encode()).hexdigest()[:24]


def group_key(group: GroupDevice) -> list[object]:
    """What the speed of a group depends on besides its first member."""
    found = group.group_info()
    members = ((m.name, m.info().name) for m in group.members)
    return [*members, *group.shares, found.link, nccl_asked()]


def cache_file() -> Path:
    """The cache file, in a folder of its own: a sandboxed worker may write to that folder alone."""
    from platformdirs import user_cache_path

    return user_cache_path("satchel") / "speeds" / "speeds.json"


def read_cache(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_cache(path: Path, known: Mapping[str, object]) -> None:
    """Writes the cache atomically; if the folder is not writable, nothing is cached."""
    text = json.dumps(known).encode()
    with suppress(OSError, RequestError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_files([(path, lambda file: write_all(file, text))])


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds of steps over this number of layers."""

    layers: int
    one: float  # one token, without the head
    whole: float  # one token, with the head
    host: float  # Python's part of a step
    many: float = 0.0  # PROMPT tokens, without the head


def _measure(gguf: GGUF, open: Open, kept: int, repack: bool, activations: int) -> Speed:
    """Measures both numbers of layers; prompts run over the smaller one alone, because caches do not help
    them.
    """
    period = _mixture(gguf)[1]
    fewer = min(kept, max(period, kept // FEWER // period * period))
    with open() as device:
        small = _run(gguf, device, fewer, repack, activations, prompt=True)
        link, latency = link_to(device)
        direct = direct_to(members_of(device)[0], gguf if repack else None)
        caches = 0 if apart(device) else processor_caches()
    large = small
    if kept > fewer:
        with open() as device:
            large = _run(gguf, device, kept, repack, activations)
    return replace(speed_of_runs(large, small, link, latency), direct=direct, caches=caches)


def speed_of_runs(large: Run, small: Run, link: float, latency: float) -> Speed:
    """Speed from two runs. A layer takes the difference of the runs; with a single layer, or if noise hides
    the difference, its share of the larger run.
    """
    share, more = large.one / large.layers, large.layers - small.layers
    one = min(share, max(0.5 * share, (large.one - small.one) / more)) if more else share
    start = max(0.0, large.one - large.layers * one)
    many = max(small.many - start, 0.5 * small.many) / small.layers
    head = max(1e-9, large.whole - large.one)
    return Speed((one, many), (head, head), link, latency, start, large.host)


def _run(gguf: GGUF, device: Device, kept: int, repack: bool, activations: int, prompt: bool = False) -> Run:
    name = gguf.metadata.get_str("general.architecture")
    span = _Span(_mixture(gguf)[0], kept, HParams(gguf.metadata, name).uint("block_count", high=512))
    weights, cache = _Slice(gguf, span), Cache(PROMPT + 2 * DECODES, batch=PROMPT)
    arch = find_arch(name, str(gguf.path))(_Sliced(gguf.metadata, name, span), weights, cache)
    engine = Engine(
        arch.build(),
        cache,
        [device],
        Uploaded(_MadeUp(weights), repack),
        batch=PROMPT,
        activations=activations,
    )
    most = HParams(gguf.metadata, name).uint("context_length", PROMPT)
    ids = [i % arch.vocab for i in range(min(PROMPT, most))]
    with _emptying(device) as empty:
        one, _ = _usual(engine, ids, 1, "hidden", empty)
        whole, host = _usual(engine, ids, 1, "tokens", empty)
    many = _usual(engine, ids, len(ids), "hidden", empty)[0] * PROMPT / len(ids) if prompt else 0.0
    engine.release()
    return Run(kept, one, whole, host, many)


@contextmanager
def _emptying(device: Device) -> Iterator[Callable[[], object]]:
    """Gives what empties the caches of a processor: threads read other memory. It does nothing for a device
    with memory of its own.
    """
    size, threads = 0 if apart(device) else CACHES * processor_caches(), device.info().threads
    if not size:
        yield lambda: None
        return
    parts = np.array_split(np.ones(size // 8, np.int64), threads)
    with ThreadPoolExecutor(threads) as pool:
        yield lambda: sum(pool.map(np.sum, parts))


def _usual(
    engine: Engine, ids: list[int], tokens: int, output: str, empty: Callable[[], object]
) -> tuple[float, float]:
    """Median seconds of a step and of Python's part of it. The first step, which compiles the plan, is not
    timed. Each step of one token has another of the ids, whose experts are others, and finds nothing of the
    weights in the processor's caches. empty: empties these.
    """
    taken, around = [], []
    for i in range(1 + (DECODES if tokens == 1 else PROMPTS)):
        if tokens > 1:
            engine.rewind(0, 0)
        # Without the head every row is an output, so that the last layer does as much as the others.
        every = output == "hidden"
        step = [ids[i % len(ids)]] if tokens == 1 else ids
        entries = [BatchEntry(0, step, None if every else GREEDY)]
        if tokens == 1:
            empty()
        started = time.perf_counter()
        program = engine.fill(entries, tokens if every else 1, output, every=every)
        format = program.plan.output.type.format
        out = np.empty((1, *program.output_shape()[1:]), FORMATS[format].dtype)
        began = time.perf_counter()
        program.run()
        program.read(out)
        taken.append(time.perf_counter() - began)
        engine.advance(entries)
        around.append(time.perf_counter() - started - taken[-1])
    engine.rewind(0, 0)
    return statistics.median(taken[1:]), statistics.median(around[1:])


def link_to(device: Device) -> tuple[float, float]:
    """Bytes per second of copies to a device and back, the slower of the two, and seconds of a small copy."""
    buffer, data = members_of(device)[0].alloc(LINK, OUT), np.ones(LINK, np.uint8)
    copies = partial(buffer.write, 0), partial(buffer.read_into, 0)
    try:
        rate = LINK / max(_shortest(partial(copy, data)) for copy in copies)
        return rate, max(_shortest(partial(copy, data[:4096])) for copy in copies)
    finally:
        buffer.close()


def direct_to(device: Device, gguf: GGUF | None = None) -> float:
    """Bytes per second that reach a device from locked pages; 0 where it has no such copies. gguf: packed on
    the device on the way, as the largest matrices of this file are; None: as they lie.
    """
    if not device.can_pin:
        return 0.0
    format, rows, columns = (0, 0, 0) if gguf is None else _packed_matrix(gguf, device)
    size = device.packed(format, 1, rows, columns) if rows else DIRECT
    data, last = np.ones(DIRECT, np.uint8), np.empty(1, np.uint8)

    def copy(buffer: Buffer) -> None:
        if rows:
            buffer.pack(0, format, (1, rows, columns), data)
        else:
            buffer.write(0, data)
        buffer.read_into(0, last)  # waits

    try:
        with closing(device.alloc(size, PREFETCH)) as buffer, closing(device.pin(data, 0, DIRECT)):
            return size / _shortest(partial(copy, buffer))
    except DeviceError:
        return 0.0


def _packed_matrix(gguf: GGUF, device: Device) -> tuple[int, int, int]:
    """Format, rows and columns of up to DIRECT bytes of a matrix like the largest of the layers' that the
    device packs; zeros where it packs none.
    """
    layers = (info for name, info in gguf.tensors.items() if name.startswith("blk."))
    for info in sorted(layers, key=lambda info: -info.nbytes):
        if len(info.shape) < 2 or info.format not in FORMATS:
            continue
        format, columns = FORMATS[info.format], info.shape[-1]
        rows = DIRECT // format.row_bytes(columns) // PART_ROWS * PART_ROWS
        if rows and device.packed(format.id, 1, rows, columns):
            return format.id, rows, columns
    return 0, 0, 0


def _shortest(copy: Callable[[], object]) -> float:
    """Seconds of a copy, the shortest of four."""
    best = inf
    for _ in range(4):
        began = time.perf_counter()
        copy()
        best = min(best, time.perf_counter() - began)
    return best
