"""The operations that are run with faults, each in a folder of its own, and what must hold of the folder
afterwards.

An operation returns its result as JSON; an error for users is a SatchelError, or the one line and the exit
code of the command line.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hub_server
import numpy as np
from mini_file import write_mini
from tiny_file import write_model

from satchel import Model
from satchel.cli.chat.history import ChatMessage, Conversation, load, save
from satchel.cli.main import main
from satchel.errors import SatchelError
from satchel.formats.gguf import open_gguf
from satchel.runtime.sampling import GREEDY
from satchel.store import Store
from satchel.store.lock import Locked, LockFile, Pinned

PROMPT = [int(i) for i in np.random.default_rng(5).integers(3, 250, 70)]
OPTIONS: dict[str, Any] = {"threads": 1, "slots": 1, "context": 128}
Run = Callable[[], Any]
PRINTED = "stdout"
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that is run with faults."""

    name: str
    prepare: Callable[[Path], None]  # prepare(folder): writes its inputs
    begin: Callable[[Path], Run]  # begin(folder): runs what precedes the tested part, and returns that part
    # Files that it writes; after a fault each is unchanged, or new and complete.
    outputs: tuple[str, ...] = ()
    check: Callable[[Path], None] | None = None  # further conditions on the outputs
    warm: bool = True  # modules are imported before
    program: bool = False  # the result is an exit code
    most: int = 2000  # number of points of one kind above which only a sample is tried
    slow: bool = False  # not part of a short run


def command(*args: str) -> Run:
    """Runs the program with these arguments; returns its exit code. Its output goes to `stdout` in the
    current folder.
    """
    file = os.open(PRINTED, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.close(file)
    return lambda: main(list(args))


# ---- load, states ----


def _model(folder: Path) -> None:
    write_model(folder / "model.gguf", qwen3__context_length=512)


def answer_of(model: Model, count: int = 4) -> list[int]:
    reply = model.generate(PROMPT, max_tokens=count, sampling=GREEDY, ignore_eos=True)
    reply.read()
    return [*map(int, reply.ids)]


def _load(folder: Path) -> Run:
    def run() -> Any:
        with Model.load(folder / "model.gguf", **OPTIONS) as model:
            return answer_of(model)

    return run


def _load_unpacked(folder: Path) -> Run:
    def run() -> Any:
        with Model.load(folder / "model.gguf", repack=False, **OPTIONS) as model:
            return answer_of(model)

    return run


def _run(folder: Path) -> Run:
    Path("prompt").write_text("a b c")
    file = os.open("prompt", os.O_RDONLY)
    os.dup2(file, 0)
    os.close(file)
    return command("run", "-m", "model.gguf", "-n", "4", "--temp", "0", "-t", "1", "-c", "64", "--seed", "1")


def _worker(folder: Path) -> Run:
    def run() -> Any:
        with Model.load(folder / "model.gguf", worker="process", **OPTIONS) as model:
            return answer_of(model)

    return run


def _save(folder: Path) -> Run:
    model = Model.load(folder / "model.gguf", **OPTIONS)
    answer_of(model)
    return lambda: model.save_state(folder / "state.kv", PROMPT)


def _saved(folder: Path) -> None:
    _model(folder)
    with Model.load(folder / "model.gguf", **OPTIONS) as model:
        answer_of(model)
        model.save_state(folder / "state.kv", PROMPT[:40])


def _restore(folder: Path) -> Run:
    model = Model.load(folder / "model.gguf", **OPTIONS)

    def run() -> Any:
        found = model.restore_state(folder / "state.kv")
        return [found.tokens, answer_of(model)]

    return run


def _state_is_whole(folder: Path) -> None:
    with Model.load(folder / "model.gguf", **OPTIONS) as model:
        found = model.restore_state(folder / "state.kv")
        assert found.tokens in (32, 64), found
        assert answer_of(model) == answer_of(model)


# ---- files ----


def _source(folder: Path) -> None:
    write_model(folder / "model.gguf", format="f16")
    write_mini(folder / "out.gguf")


def _quantize(folder: Path) -> Run:
    return command("quantize", "model.gguf", "out.gguf", "Q8_0", "-t", "1")


def _edit(folder: Path) -> Run:
    return command("edit", "model.gguf", "--set", "general.name=Other")


def _readable(name: str) -> Callable[[Path], None]:
    def check(folder: Path) -> None:
        with open_gguf(folder / name) as gguf:
            gguf.check()

    return check


def _conversation(turns: int) -> Conversation:
    return Conversation(
        turns=tuple(ChatMessage(("user", "assistant")[i % 2], f"text {i}") for i in range(turns))
    )


def _chat(folder: Path) -> None:
    save(_conversation(2), folder / "chat.json")


def _chat_save(folder: Path) -> Run:
    return lambda: save(_conversation(6), folder / "chat.json")


def _chat_load(folder: Path) -> Run:
    return lambda: [turn.content for turn in load(folder / "chat.json").turns]


def _chat_is_whole(folder: Path) -> None:
    assert len(load(folder / "chat.json").turns) in (2, 6)


# ---- lock file, configuration ----


def _locked(name: str, folder: Path) -> Locked:
    from hashlib import sha256

    data = (folder / "store" / "a.gguf").read_bytes()
    return Locked(name, (Pinned("a.gguf", len(data), sha256(data).hexdigest(), "https://h/a", ""),), "mit")


def _store(folder: Path) -> None:
    (folder / "store").mkdir()
    write_mini(folder / "store" / "a.gguf")
    lock = LockFile(folder / "store")
    lock.put(_locked("hf:a/a:q8_0", folder))


def _lock(folder: Path) -> Run:
    model = _locked("hf:b/b:q8_0", folder)

    def run() -> Any:
        lock = LockFile(folder / "store")
        lock.put(model)
        lock.stamp(model)
        lock.drop("hf:a/a:q8_0")
        found = lock.read()
        return [sorted(found), [path.name for path in lock.check(found["hf:b/b:q8_0"])]]

    return run


def _lock_is_whole(folder: Path) -> None:
    lock = LockFile(folder / "store")
    found = lock.read()
    assert sorted(found) in (["hf:a/a:q8_0"], ["hf:a/a:q8_0", "hf:b/b:q8_0"], ["hf:b/b:q8_0"]), sorted(found)
    for model in found.values():
        lock.check(model)


def _config(folder: Path) -> None:
    (folder / "config.toml").write_text("[defaults]\nthreads = 3\n[serve]\nport = 8099\n")


def _config_show(folder: Path) -> Run:
    return command("--config", str(folder / "config.toml"), "config", "show", "serve", "--changed")


# ---- pull ----

NAME = "hf:user/repo/m.gguf"


def _environ(folder: Path) -> dict[str, str]:
    return {
        "SATCHEL_MODELS": str(folder / "models"), "HF_ENDPOINT": os.environ.get("FAULTS_HUB", ""),
        "HF_HOME": str(folder / "hf"), "OLLAMA_MODELS": str(folder / "ollama"), "HOME": str(folder),
    }  # fmt: skip


def _pull(folder: Path) -> Run:
    def run() -> Any:
        path = Store(environ=_environ(folder), pace=hub_server.QUICK).pull(NAME)
        return [path.name, path.stat().st_size]

    return run


def _pulled_is_whole(folder: Path) -> None:
    """A pulled file matches the lock file, and pulling again succeeds."""
    store = Store(environ=_environ(folder), pace=hub_server.QUICK)
    for model in store._lock.read().values():
        store._lock.check(model)
    path = store.pull(NAME)
    with open_gguf(path) as gguf:
        gguf.check()


def _nothing(folder: Path) -> None:
    """No input is needed."""


@contextmanager
def hub(folder: Path) -> Iterator[None]:
    """A server of models in a process of its own, so that this process may fork."""
    data = write_mini(folder / "served.gguf").read_bytes()
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        with hub_server.hub_server() as running:
            running.put_repo("user/repo", {"m.gguf": data})
            os.write(sink, running.url.encode())
            os.close(sink)
            signal.pause()
    os.close(sink)
    os.environ["FAULTS_HUB"] = os.read(source, 1000).decode()
    os.close(source)
    try:
        yield
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


OPERATIONS = (
    Operation("first run", _model, _run, warm=False, program=True, most=12),
    Operation("load", _model, _load),
    Operation("worker", _model, _worker, most=6, slow=True),
    Operation("load without repacking", _model, _load_unpacked),
    Operation(
        "pull", _nothing, _pull, ("models/hf/user/repo/m.gguf", "models/models.lock"), _pulled_is_whole
    ),
    Operation("quantize", _source, _quantize, ("out.gguf",), _readable("out.gguf"), program=True),
    Operation("edit", _source, _edit, ("model.gguf",), _readable("model.gguf"), program=True),
    Operation("save a slot", _saved, _save, ("state.kv",), _state_is_whole),
    Operation("restore a slot", _saved, _restore),
    Operation("save a chat", _chat, _chat_save, ("chat.json",), _chat_is_whole),
    Operation("load a chat", _chat, _chat_load),
    Operation("lock file", _store, _lock, ("store/models.lock",), _lock_is_whole),
    Operation("config", _config, _config_show, program=True),
)


def outcome(run: Run) -> dict[str, Any]:
    """The operation's value, or the error that a user would see; other exceptions propagate."""
    try:
        return {"value": run()}
    except SatchelError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    except MemoryError as error:
        return {"error": f"MemoryError: {error}"}


def left_behind(folder: Path, known: set[str]) -> list[str]:
    """Files that are neither inputs nor outputs, and that the next run does not use."""
    found = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    usual = (
        "stdout",
        "models/.locks",
        "store/.locks",
        "store/.stamps.json",
        "models/.stamps.json",
        "hf/",
        ".cache",
    )
    kept = (".incoming",)
    return sorted(
        f for f in found - known if not f.startswith(usual) and not any(k in f for k in kept) and f != "log"
    )


def copied(template: Path, to: Path) -> Path:
    """A fresh folder with the operation's inputs."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(template, to)
    return to


def dumped(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
