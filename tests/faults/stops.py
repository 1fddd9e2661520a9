"""Fault: a worker process or a server is stopped (SIGSTOP) for a while, or for good.

What must hold: after it continues, the answer is the same; a close meanwhile returns and leaves no process.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from operations import OPTIONS, PROMPT
from points import CLEAN, OK, WRONG, Row, forked
from shim import FAMILIES
from tiny_file import write_model

from satchel import Model
from satchel.errors import SatchelError
from satchel.runtime.api.model import WorkerModel
from satchel.runtime.sampling import GREEDY

TOKENS = 60


def _paused(seconds: float) -> None:
    """Lets time pass while the stopped process does nothing."""
    select.select([], [], [], seconds)


def _worker(path: Path) -> WorkerModel:
    model = Model.load(path, worker="process", **OPTIONS)
    assert isinstance(model, WorkerModel)
    return model


def _stopped_in_an_answer(path: Path, then: Callable[[int], None]) -> Any:
    with _worker(path) as model:
        reply = model.generate(PROMPT[:5], max_tokens=TOKENS, sampling=GREEDY, ignore_eos=True)
        next(reply)
        pid = model.worker.pid
        os.kill(pid, signal.SIGSTOP)
        _paused(1.0)
        then(pid)
        reply.read()
        return [*map(int, reply.ids)]


def _goes_on(path: Path) -> Any:
    return _stopped_in_an_answer(path, lambda pid: os.kill(pid, signal.SIGCONT))


def _is_killed(path: Path) -> Any:
    return _stopped_in_an_answer(path, lambda pid: os.kill(pid, signal.SIGKILL))


def _is_closed(path: Path) -> Any:
    """close() while the worker is stopped for good."""
    model = _worker(path)
    pid = model.worker.pid
    os.kill(pid, signal.SIGSTOP)
    model.close()
    return Path(f"/proc/{pid}").exists()


def _server(path: Path) -> Any:
    """A server that is stopped in the middle of a stream and continues; stopped again, it ends on request."""
    command = [
        sys.executable,
        "-m",
        "satchel",
        "serve",
        "--port",
        "0",
        "-m",
        str(path),
        "-t",
        "1",
        "-c",
        "128",
    ]
    process = subprocess.Popen([*command, "--worker", "thread"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        address = re.search(r"http://\S+", process.stderr.readline())
        assert address, "no address"
        url = address[0].rstrip(".,")
        body = {
            "prompt": PROMPT[:5],
            "max_tokens": TOKENS,
            "temperature": 0,
            "stream": True,
            "ignore_eos": True,
        }
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            first = answer.readline()
            process.send_signal(signal.SIGSTOP)
            _paused(1.0)
            process.send_signal(signal.SIGCONT)
            rest = answer.read()
        whole = rest.endswith(b"data: [DONE]\n\n") and first.startswith(b"data: ")
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        return [whole, process.wait(120) in (0, -signal.SIGTERM)]
    finally:
        process.kill()
        process.wait()


def stop_rows(folder: Path, short: bool) -> list[Row]:
    folder.mkdir(parents=True)
    path = write_model(folder / "model.gguf", qwen3__context_length=512)

    def usual() -> Any:
        with Model.load(path, **OPTIONS) as model:
            reply = model.generate(PROMPT[:5], max_tokens=TOKENS, sampling=GREEDY, ignore_eos=True)
            reply.read()
            return [*map(int, reply.ids)]

    wanted = forked(usual, folder / "log").value
    cases: dict[str, tuple[Callable[[Path], Any], Any]] = {
        "a stopped worker goes on": (_goes_on, wanted),
        "a stopped worker is killed": (_is_killed, wanted),
    }
    if not short:
        cases["a model is closed while its worker is stopped"] = (_is_closed, False)
        cases["a stopped server goes on, and ends"] = (_server, [True, True])
    rows = []
    for name, (run, expected) in cases.items():
        row, ending = Row(name), forked(lambda run=run: run(path), folder / "log")  # type: ignore[misc]
        good = ending.kind == OK and ending.value == expected
        kind = OK if good else WRONG if ending.kind == OK else ending.kind
        row.add(name, kind, f"expected {expected}, got {ending.value}: {ending.text}")
        rows.append(row)
    return rows


LIBRARIES = ("libsatchel_", "tokenizers", "_multiarray_umath")


def abort_rows(folder: Path, short: bool) -> list[Row]:
    """Allocation failures in a worker process, within its own libraries and in others', which may abort. The
    outcome is an error of the request or a crashed worker, never a crash of this process.
    """
    folder.mkdir(parents=True)
    path = write_model(folder / "model.gguf", qwen3__context_length=512)
    rows, mark = [], folder / "mark"
    for library in LIBRARIES[:1] if short else LIBRARIES:
        row = Row(f"a worker without memory in {library}")
        for number in (5,) if short else (*range(1, 20), *range(20, 2000, 70)):
            mark.unlink(missing_ok=True)
            ending = forked(
                lambda library=library, number=number: _starved(path, library, number, mark), folder / "log"
            )  # type: ignore[misc]
            text = ending.text
            if not mark.exists():  # there are fewer calls
                break
            kind = ending.kind
            if ending.kind == OK and "error" in ending.value:
                kind, text = CLEAN, ending.value["error"]
            row.add(f"{row.name}: call {number}", kind, text)
        rows.append(row)
    return rows


def _starved(path: Path, library: str, number: int, mark: Path) -> Any:
    told = f"{FAMILIES['malloc']}:{number}:12:0"
    os.environ |= {
        "SATCHEL_FAULTS": told,
        "SATCHEL_FAULTS_AFTER": path.name,
        "SATCHEL_FAULTS_LIBRARY": library,
    }
    os.environ["SATCHEL_FAULTS_MARK"] = str(mark)
    try:
        with Model.load(path, worker="process", sandbox=False, **OPTIONS) as model:  # the shim leaves a mark
            reply = model.generate(PROMPT[:5], max_tokens=4, sampling=GREEDY, ignore_eos=True)
            reply.read()
            return {"value": [*map(int, reply.ids)]}
    except (SatchelError, MemoryError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
