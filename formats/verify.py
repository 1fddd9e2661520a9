"""Findings of `satchel verify`: each fault of a file with its place and its repair.

A finding is built from the loader's own error, so verifier and loader agree.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from satchel.errors import ModelError
from satchel.formats.gguf import GGUF, Metadata, TensorInfo, Typed
from satchel.formats.gguf.check import Fault
from satchel.formats.verify_values import NOT_A_NUMBER, Damage
from satchel.quant import FORMATS

Severity = Literal["error", "warning"]
CheckName = Literal["container", "meaning", "values", "tokenizer", "template"]
CHECKS: tuple[CheckName, ...] = ("container", "meaning", "values", "tokenizer", "template")
T = TypeVar("T")

REASON = re.compile(r"expected (?P<wanted>.+?), got (?P<found>.+?)(?:; (?P<do>[^;]+))?", re.DOTALL)
MISSING = re.compile(r"(\S+) is missing")
# The words before the key or tensor in an error of the container.
PREFIX = re.compile(r"(?:tensor|type of|element type of|length of(?: string \d+ of)?|dimensions of) ")
WORD = re.compile(r"[\w./-]*\w")
NAME = re.compile(r"[A-Za-z]\w*(?:\.[\w-]+)+")
CHOICE = "--set {key}=VALUE, or --remove {key} for the usual one"
FINDINGS_LIMIT = 10_000  # bounds the memory of a file with many faults
RETRIES = 64  # keys that may be wrong at once


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of a file."""

    severity: Severity  # "error": the loader refuses it, or results are wrong; "warning": an oddity
    check: CheckName
    file: str
    subject: str  # a key or a tensor; "" for the file itself
    offset: int | None  # byte offset in the file, of the key's entry or the tensor's data
    wanted: str
    found: str
    repair: str  # a command, or what to do
    message: str  # the loader's error message


class Log:
    """The findings about one file, in order and without duplicates."""

    def __init__(self, path: Path, places: Mapping[str, int] | None = None) -> None:
        self.path, self.places = path, {} if places is None else places
        self.metadata = Metadata({})
        self.tensors: Mapping[str, TensorInfo] = {}
        self.files: tuple[Path, ...] = (path,)
        self.findings: list[Finding] = []
        self._said: set[str] = set()

    def knows(self, gguf: GGUF, metadata: Metadata | None = None) -> None:
        """Sets the keys and tensors that are recognized in messages. metadata: used instead of the file's
        own.
        """
        self.metadata = gguf.metadata if metadata is None else metadata
        self.tensors = gguf.tensors
        self.files = tuple(part.path for part in gguf.parts)

    def error(self, check: CheckName, error: ModelError | str, *, repair: str = "") -> None:
        self._note("error", check, error, repair)

    def warning(self, check: CheckName, error: ModelError | str, *, repair: str = "") -> None:
        self._note("warning", check, error, repair)

    def damage(self, damage: Damage) -> None:
        """Adds a finding about a tensor's values."""
        unit = "rows" if FORMATS[self.tensors[damage.tensor].format].block == 1 else "blocks"
        share = f"{damage.kind} in {damage.count} of {damage.total} {unit}, first in row {damage.row}"
        wanted = "numbers" if damage.kind == NOT_A_NUMBER else "values that a quantizer writes"
        text = f"{damage.tensor}: expected {wanted}, got {share}"
        repair = self._made_again(damage.tensor)
        self._add("error" if damage.grave else "warning", "values", text, damage.tensor, damage.at, repair)

    def command(self, change: str) -> str:
        """The `satchel edit` command with this change."""
        return f"satchel edit {self.quoted()} {change}"

    def quoted(self) -> str:
        """The file's path, quoted for a shell."""
        return shlex.quote(str(self.path))

    def names(self, message: str) -> str:
        """The first key or tensor that a message names, including a missing key; "" for none."""
        words = [word.rstrip(".") for word in WORD.findall(self._body(message))]
        return next((w for w in words if w in self.metadata or w in self.tensors or NAME.fullmatch(w)), "")

    def _note(self, severity: Severity, check: CheckName, error: ModelError | str, repair: str) -> None:
        message = " ".join(str(error).split("\n"))
        if isinstance(error, Fault):
            subject, offset = PREFIX.sub("", error.subject), error.at
        else:
            subject, offset = self.names(message), None
        self._add(severity, check, message, subject, offset, repair)

    def _add(
        self,
        severity: Severity,
        check: CheckName,
        message: str,
        subject: str,
        offset: int | None,
        repair: str,
    ) -> None:
        if message in self._said:
            return
        if len(self.findings) == FINDINGS_LIMIT:
            message, subject, offset = f"there are more than {FINDINGS_LIMIT:,} findings", "", None
        elif len(self.findings) > FINDINGS_LIMIT:
            return
        self._said.add(message)
        if offset is None:
            info = self.tensors.get(subject)
            offset = info.offset if info else self.places.get(subject)
        body = self._body(message)
        wanted, found, do = _reason(body)
        found = found.removeprefix(f"{subject}: ")
        repair = repair or self._repair(check, subject, do)
        file = str(self._file_of(subject, message))
        self.findings.append(Finding(severity, check, file, subject, offset, wanted, found, repair, message))

    def _body(self, message: str) -> str:
        for path in (*self.files, self.path):
            message = message.removeprefix(f"{path}: ")
        return message

    def _file_of(self, subject: str, message: str) -> Path:
        named = next((path for path in self.files if message.startswith(f"{path}: ")), None)
        info = self.tensors.get(subject)
        return named or (self.files[info.part] if info else self.files[0])

    def _repair(self, check: CheckName, subject: str, do: str) -> str:
        if check == "container":
            return do or "download it again"
        if subject in self.tensors or subject.endswith((".weight", ".bias")):
            return self._made_again(subject)
        if subject == "tokenizer.chat_template":
            return self.command(f"--set {subject}=@TEMPLATE.jinja")
        if subject:
            return self.command(f"--set {subject}=VALUE")
        return do or "convert the model again"

    def _made_again(self, tensor: str) -> str:
        """The command that creates the tensor again from the original model."""
        file, info = self.quoted(), self.tensors.get(tensor)
        if info is None or info.format in ("f32", "f16", "bf16"):
            return f"satchel convert FOLDER {file}"
        return f"satchel quantize ORIGINAL {file} {info.format.upper()}"


def _reason(body: str) -> tuple[str, str, str]:
    """(wanted, found, what to do), parsed from an error's text."""
    start = REASON.search(body)
    match = REASON.fullmatch(body, start.start()) if start else None
    if match:
        return match["wanted"], match["found"], match["do"] or ""
    text, _, do = body.partition("; ")
    if MISSING.match(text):
        return "a tensor of this name", "none", do
    return "", text, do


def each_fault(
    build: Callable[[Metadata], T],
    metadata: Metadata,
    log: Log,
    check: CheckName,
    substitute: Callable[[str], Typed | None] = lambda key: None,
) -> T | None:
    """Runs `build` repeatedly, each time without the key that it refused last, and logs every error. Returns
    the result, or None where `build` never succeeds.

    substitute: a value for a required key, with which the check continues.
    """
    values = {key: metadata.typed(key) for key in metadata}
    faults: list[tuple[ModelError, str]] = []
    needed: set[str] = set()
    built: T | None = None
    for _ in range(RETRIES):
        try:
            built = build(Metadata(values, metadata.source) if faults else metadata)
            break
        except ModelError as error:
            key = log.names(str(error))
            met = any(key == other for _, other in faults)
            if not met:
                faults.append((error, key))
            if not met and key in values:
                del values[key]
                continue
            stand_in = substitute(key)
            if stand_in is None or key in needed:
                needed.add(key)
                break
            needed.add(key)
            values[key] = stand_in
    for fault, key in faults:
        removable = key in metadata and key not in needed
        log.error(check, fault, repair=log.command(CHOICE.format(key=key)) if removable else "")
    return built
