"""Fault: another process truncates or overwrites a file in each phase of its use.

What must hold: an error that says so, or a valid answer; no crash by a signal, no hang, no traceback.
Overwritten weights are other weights, so any answer is valid.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from operations import OPTIONS, PROMPT, answer_of, command, outcome
from points import CLEAN, OK, TRACEBACK, Row, forked
from tiny_file import write_model

from satchel import Model
from satchel.formats.gguf import open_gguf

Harm = Callable[[Path], None]
Phase = Callable[[Path, Harm], Any]


def _cut_to(share: float) -> Harm:
    def harm(path: Path) -> None:
        os.truncate(path, int(path.stat().st_size * share))

    return harm


def _overwrite(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(random.Random(size).randbytes(size))


def _remove(path: Path) -> None:
    path.unlink()


def _replace(path: Path) -> None:
    """Another file takes the name; a process that has the old file open keeps it."""
    other = path.with_name("other")
    other.write_bytes(b"GGUF" + bytes(100))
    other.replace(path)


HARMS: dict[str, Harm] = {
    "cut to nothing": _cut_to(0.0), "cut in the header": _cut_to(0.01), "cut in the middle": _cut_to(0.5),
    "cut at the end": _cut_to(0.999), "written over": _overwrite, "removed": _remove, "replaced": _replace,
}  # fmt: skip


def _before(path: Path, harm: Harm) -> Any:
    harm(path)
    with Model.load(path, **OPTIONS) as model:
        return answer_of(model)


def _opened(path: Path, harm: Harm) -> Any:
    with open_gguf(path) as gguf:
        harm(path)
        return sum(len(piece) for name in gguf.tensors for piece in gguf.chunks(name))


def _loading(repack: bool, at: int) -> Phase:
    def phase(path: Path, harm: Harm) -> Any:
        calls = 0

        def progress(done: int, total: int) -> None:
            nonlocal calls
            calls += 1
            if calls == at:
                harm(path)

        with Model.load(path, progress=progress, repack=repack, **OPTIONS) as model:
            return answer_of(model)

    return phase


def _loaded(repack: bool) -> Phase:
    def phase(path: Path, harm: Harm) -> Any:
        with Model.load(path, repack=repack, **OPTIONS) as model:
            harm(path)
            return answer_of(model)

    return phase


def _answering(repack: bool) -> Phase:
    def phase(path: Path, harm: Harm) -> Any:
        with Model.load(path, repack=repack, **OPTIONS) as model:
            reply = model.generate(PROMPT[:5], max_tokens=20, ignore_eos=True)
            next(reply)
            harm(path)
            reply.read()
            return len(reply.ids)

    return phase


def _saving(path: Path, harm: Harm) -> Any:
    with Model.load(path, **OPTIONS) as model:
        answer_of(model)
        harm(path)
        return model.save_state(path.with_name("state.kv"), PROMPT)


def _restoring(path: Path, harm: Harm) -> Any:
    """The fault hits the saved state."""
    state = path.with_name("state.kv")
    with Model.load(path, **OPTIONS) as model:
        answer_of(model)
        model.save_state(state, PROMPT)
        harm(state)
        model.restore_state(state)
        return answer_of(model)


def _quantizing(path: Path, harm: Harm) -> Any:
    """The fault hits the source after it was opened, before the target is written."""
    from satchel.formats import quantize

    usual = quantize.write_gguf

    def harmed(*args: Any, **how: Any) -> Any:
        harm(path)
        return usual(*args, **how)

    quantize.write_gguf = harmed
    os.chdir(path.parent)
    return command("quantize", path.name, "out.gguf", "Q8_0", "-t", "1")()


def _in_worker(path: Path, harm: Harm) -> Any:
    with Model.load(path, worker="process", **OPTIONS) as model:
        harm(path)
        return answer_of(model)


PHASES: dict[str, Phase] = {
    "before it is opened": _before,
    "after it was opened": _opened,
    "while it is loaded, first part": _loading(True, 1),
    "while it is loaded, later": _loading(True, 8),
    "while it is mapped, first part": _loading(False, 1),
    "while it is mapped, later": _loading(False, 8),
    "after it was loaded": _loaded(True),
    "after it was mapped": _loaded(False),
    "while it answers": _answering(True),
    "while it answers, mapped": _answering(False),
    "while a state is saved": _saving,
    "while a state is restored": _restoring,
    "while it is quantized": _quantizing,
}
WORKER: dict[str, Phase] = {"in a worker process": _in_worker}


def cut_rows(folder: Path, short: bool) -> list[Row]:
    """A row for each phase."""
    folder.mkdir(parents=True)
    whole = write_model(folder / "whole.gguf", format="f16", qwen3__context_length=512)
    rows = []
    for name, phase in (PHASES if short else PHASES | WORKER).items():
        row = Row(name)
        for harm_name, harm in list(HARMS.items())[:: 2 if short else 1]:
            row.add(f"{name}: {harm_name}", *_point(folder, whole, phase, harm))
        rows.append(row)
    return rows


def _point(folder: Path, whole: Path, phase: Phase, harm: Harm) -> tuple[str, str]:
    at = folder / "at"
    shutil.rmtree(at, ignore_errors=True)
    at.mkdir()
    shutil.copy(whole, at / "model.gguf")
    ending = forked(lambda: outcome(lambda: phase(at / "model.gguf", harm)), folder / "log")
    if ending.kind != OK:
        return ending.kind, ending.text
    if "Traceback" in ending.text or "internal error" in ending.text:
        return TRACEBACK, ending.text
    if phase is _quantizing and ending.value.get("value"):
        return (CLEAN if "satchel: error: " in ending.text else TRACEBACK), ending.text
    return (CLEAN, ending.value["error"]) if "error" in ending.value else (OK, "")
