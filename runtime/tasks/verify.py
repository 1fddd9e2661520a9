"""`satchel verify`: finds all faults of a file, with the code that loads it. A file without an error here can
be loaded.

The container is read past its faults, the architecture is built again without what it refused, and every
weight is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from satchel.errors import ModelError
from satchel.formats.gguf import GGUF, Metadata, StringArray, TensorInfo, Typed, ValueType, open_gguf
from satchel.formats.gguf.check import Survey
from satchel.formats.gguf.types import EXTENSION_TYPES, EXTENSIONS_KEY
from satchel.formats.verify import CHECKS, CheckName, Finding, Log, each_fault
from satchel.formats.verify_text import check_template, check_tokenizer
from satchel.formats.verify_values import Progress, scan
from satchel.runtime.graph import Array, Node, Type
from satchel.runtime.layers.arch import Arch, Cache, Forward, HParams, find_arch
from satchel.runtime.weights.weights import FileWeights

CLEAN, FOUND, UNREADABLE = 0, 1, 2
CONTEXT = 512  # context of the graph: a larger one would prove nothing more
SIZES = re.compile(r"(?<!context)_(?:length|count|kv|size)\Z")  # keys from which shapes follow
LAYER = re.compile(r"blk\.(\d{1,4})\.")


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Result of verifying a file."""

    path: Path
    parts: tuple[Path, ...]
    size: int
    tensors: int
    findings: tuple[Finding, ...]
    checked: tuple[CheckName, ...]  # the checks that were made
    left_out: Mapping[CheckName, str]  # the others, with the reason
    readable: bool = True  # the file could be opened

    @property
    def errors(self) -> int:
        return sum(finding.severity == "error" for finding in self.findings)

    def exit_code(self, strict: bool = False) -> int:
        """0: no error (strict: no finding); 1: an error; 2: the file cannot be opened."""
        if not self.readable:
            return UNREADABLE
        return FOUND if self.errors or (strict and self.findings) else CLEAN


def verify(path: str | Path, *, values: bool = True, progress: Progress | None = None) -> VerifyReport:
    """Checks a file, or the split set that it belongs to. values: read the weights too; progress(bytes done,
    bytes in all) is called meanwhile.
    """
    path, survey = Path(path), Survey()
    log = Log(path, survey.places)
    try:
        gguf = open_gguf(path, survey)
    except ModelError as error:
        for fault in (*survey.faults, error):
            log.error("container", fault)
        readable = path.is_file() and "can't be read" not in str(error)
        left_out: dict[CheckName, str] = dict.fromkeys(CHECKS[1:], "the container can't be read to its end")
        return VerifyReport(path, (path,), 0, 0, tuple(log.findings), CHECKS[:1], left_out, readable)
    with gguf:
        log.knows(gguf)
        for fault in survey.faults:
            log.error("container", fault)
        for warning in gguf.warnings:
            log.warning("container", warning, repair=f"satchel merge {log.quoted()} NEW.gguf")
        _check_extensions(gguf, log)
        left_out = _kind(gguf)
        faulty = {finding.subject for finding in log.findings}
        if "meaning" not in left_out:
            check_model(gguf.metadata, FileWeights(gguf), log)
        if values:
            for damage in scan(gguf, skip=_outside(gguf) | faulty, progress=progress):
                log.damage(damage)
        else:
            left_out["values"] = "not asked for"
        parts, size = tuple(p.path for p in gguf.parts), sum(p.size for p in gguf.parts)
    findings = [f for f in log.findings if f.check in ("container", "values") or f.subject not in faulty]
    checked = tuple(check for check in CHECKS if check not in left_out)
    return VerifyReport(path, parts, size, len(gguf.tensors), tuple(findings), checked, left_out)


def _kind(gguf: GGUF) -> dict[CheckName, str]:
    """Checks that do not apply to this kind of file, with the reason."""
    kind = gguf.metadata.get("general.type", "model")
    if kind == "model":
        return {}
    shown = repr(kind)[:40] if isinstance(kind, str) else "no string"
    return dict.fromkeys(("meaning", "tokenizer", "template"), f"general.type is {shown}: no model to run")


def _check_extensions(gguf: GGUF, log: Log) -> None:
    """Warns if tensor types of ours, which no other program reads, are not declared in the metadata."""
    used = {info.format for info in gguf.tensors.values()} & EXTENSION_TYPES
    named = gguf.metadata.get(EXTENSIONS_KEY)
    missing = sorted(used - set(named.tolist() if isinstance(named, StringArray) else ()))
    if missing:
        text = f"{gguf.path}: {EXTENSIONS_KEY}: expected {', '.join(sorted(used))}, got no {missing[0]}"
        names = json.dumps(sorted(used))
        log.warning("container", text, repair=log.command(f"--set '{EXTENSIONS_KEY}:string[]={names}'"))


def _outside(gguf: GGUF) -> set[str]:
    """Tensors whose bytes lie outside the file."""
    return {i.name for i in gguf.tensors.values() if i.offset + i.nbytes > gguf.parts[i.part].size}


def check_model(metadata: Metadata, weights: FileWeights, log: Log) -> None:
    """Checks that keys and shapes are consistent, and the tokenizer and the template. The metadata may differ
    from the file's: `edit` checks its changes this way.
    """
    check_meaning(metadata, weights, log)
    tokenizer = check_tokenizer(metadata, weights.gguf.tensors, log)
    check_template(metadata, tokenizer, log)


def check_meaning(metadata: Metadata, weights: FileWeights, log: Log) -> Forward | None:
    """The architecture's own checks, as in a load, but for all keys and tensors."""
    try:
        name = metadata.get_str("general.architecture")
        arch = find_arch(name, metadata.source)
    except ModelError as error:
        log.error("meaning", error)
        return None
    if not weights.names:
        log.error("meaning", f"{metadata.source}: tensors: expected those of {name}, got none; give a model")
        return None

    tensors = weights.gguf.tensors
    known = _right_layers(metadata, name, tensors, log)

    def build(values: Metadata) -> Forward:
        changed = [key for key in known if values is not known and not _same(values, known, key)]
        shapes = not any(SIZES.search(key) for key in changed) and all(key in known for key in values)
        hp = HParams(values, name)
        context = min(CONTEXT, hp.uint("context_length", high=1 << 30))
        return _surveying(arch, log, shapes)(hp, _CheckedWeights(weights, log), Cache(context)).build()

    return each_fault(build, known, log, "meaning", lambda key: _guess(key.removeprefix(f"{name}."), tensors))


def _right_layers(metadata: Metadata, arch: str, tensors: Mapping[str, TensorInfo], log: Log) -> Metadata:
    """The metadata with the tensors' number of layers: hundreds of missing or unused tensors then count as
    one wrong number.
    """
    key, found = f"{arch}.block_count", _layers(tensors)
    said = metadata.get(key)
    if not isinstance(said, int) or not 0 < said <= 512 or not found or said == found:
        return metadata
    error = metadata.fault(key, f"{found}, the layers that the tensors have", said)
    log.error("meaning", error, repair=log.command(f"--set {key}={found}"))
    values = {other: metadata.typed(other) for other in metadata}
    values[key] = Typed(values[key].type, found)
    return Metadata(values, metadata.source)


def _layers(tensors: Mapping[str, TensorInfo]) -> int:
    """Number of consecutive layers from 0 on; 0 if there is a gap."""
    found = {int(m[1]) for m in map(LAYER.match, tensors) if m}
    return len(found) if found == set(range(len(found))) else 0


def _same(values: Metadata, metadata: Metadata, key: str) -> bool:
    return key in values and values.typed(key) is metadata.typed(key)


class _CheckedWeights:
    """A file's weights. A tensor in a format that this version does not run is recorded, and treated as
    float32. refused: expected shapes of tensors whose shapes differ.
    """

    def __init__(self, weights: FileWeights, log: Log) -> None:
        self.weights, self.log = weights, log
        self.refused: dict[str, tuple[int, ...]] = {}
        self.gguf, self.names = weights.gguf, weights.names

    def type(self, name: str) -> Type | None:
        try:
            return self.weights.type(name)
        except ModelError as error:
            self.log.error("meaning", error)
            return Type(self.gguf.tensors[name].shape, "f32")

    def array(self, name: str) -> Array:
        shape = self.refused.get(name)
        return self.weights.array(name) if shape is None else np.ones(shape, np.float32)


def _surveying(arch: type[Arch], log: Log, shapes: bool) -> type[Arch]:
    """The architecture with missing or misshapen weights recorded instead of refused. shapes: whether the
    keys that decide the shapes are right.
    """

    def weight(self: Arch, name: str, *shape: int | None) -> Node:
        try:
            return arch.weight(self, name, *shape)
        except ModelError as error:
            if shapes or name not in self.weights.names:
                log.error("meaning", error)
        self.used.add(name)
        stand_in = tuple(1 if size is None else size for size in shape)
        if isinstance(self.weights, _CheckedWeights):
            self.weights.refused[name] = stand_in
        return self.graph.node("weight", (), Type(stand_in, "f32"), name)

    def reject_unused(self: Arch) -> None:
        try:
            arch._reject_unused(self)
        except ModelError as error:
            if shapes:
                log.error("meaning", error)

    members: dict[str, Any] = {"weight": weight, "_reject_unused": reject_unused}
    return type(f"Surveying{arch.__name__}", (arch,), members)


def _guess(key: str, tensors: Mapping[str, TensorInfo]) -> Typed | None:
    """A value for a missing required key, derived from the tensors, so that the check can continue."""
    embedding, up = tensors.get("token_embd.weight"), tensors.get("blk.0.ffn_up.weight")
    guesses = {
        "block_count": min(512, _layers(tensors)),
        "embedding_length": embedding.shape[-1] if embedding and embedding.shape else 64,
        "feed_forward_length": up.shape[0] if up and up.shape else 64,
        "context_length": CONTEXT,
        "attention.head_count": 1,
        "expert_count": 1,
        "expert_used_count": 1,
        "expert_feed_forward_length": 64,
    }
    if key == "attention.layer_norm_rms_epsilon":
        return Typed(ValueType.FLOAT32, 1e-5)
    found = guesses.get(key)
    return None if found is None or not 0 < found < 1 << 24 else Typed(ValueType.UINT32, found)
