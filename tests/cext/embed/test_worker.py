"""A worker process behind satchel.h gives what the library does, token for token and text for text; and what
the library lacks. Its end, and whatever else it may be, is an error that says so.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import embedded
import pytest
from built_families import ids_of
from embed_cases import CHAINS, REPEATED, SAMPLINGS, written
from embedded import EITHER, WORKER, Driver, DriverError
from once import made_once
from tiny_file import write_model
from waiting import joined, until

from satchel.errors.threads import begin
from satchel.formats.gguf import open_gguf
from satchel.runtime.aot.build import build
from satchel.runtime.app_worker import wire
from satchel.runtime.app_worker.calls import NUMBERS, AppSession
from satchel.runtime.children import interpreter

E_ARGUMENT, E_FILE, E_UNBUILT, E_FULL, E_LONG, E_WORKER, E_LACKS = -1, -2, -3, -6, -7, -8, -9
# A program that says what a file holds and no more, and then hears the other side out.
TALKS = """
import socket, sys
both = socket.socket(fileno=0)
both.sendall(open(sys.argv[1], "rb").read())
both.shutdown(socket.SHUT_WR)
while both.recv(1 << 16):
    pass
"""
# One that says so much and then stops.
STOPS = """
import os, signal, socket, sys
open(sys.argv[2], "w").write(str(os.getpid()))
socket.socket(fileno=0).sendall(open(sys.argv[1], "rb").read())
os.kill(os.getpid(), signal.SIGSTOP)
"""
NO_MACHINE = "{% for m in messages recursive %}{{ m.role }}: {{ m.content }}\n{% endfor %}>"


@pytest.fixture(scope="module", autouse=True)
def sockets() -> None:
    if sys.platform == "win32":
        pytest.skip("the library starts no worker process here")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that is `satchel` with this environment's Python, and tells its process."""
    folder = tmp_path_factory.mktemp("a folder")
    run = shlex.join([*interpreter(), "-m", "satchel"])
    return script(folder / "satchel", f'echo $$ > {shlex.quote(str(folder / "pid"))}; exec {run} "$@"')


def script(path: Path, lines: str) -> Path:
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """m.gguf, and app.gguf, which is built of it."""

    def make(folder: Path) -> None:
        with open_gguf(write_model(folder / "m.gguf", "qwen3")) as gguf:
            build(gguf, folder / "app.gguf")

    return made_once(tmp_path_factory, "embed-worker", make)


@pytest.fixture(scope="module")
def two(
    tmp_path_factory: pytest.TempPathFactory, program: Path, folder: Path
) -> Iterator[tuple[Driver, Driver]]:
    """The library and a worker, with the built file."""
    made = embedded.driver_program(tmp_path_factory)
    with Driver(made) as own, Driver(made) as other:
        facts = own.open(folder / "app.gguf", 96, 3)
        assert other.open(folder / "app.gguf", 96, 3, 1, WORKER, program) == [*facts, "worker"]
        yield own, other


def answer(driver: Driver, ids: list[int], options: dict[str, Any]) -> tuple[Any, ...]:
    """Pieces and report of an answer."""
    driver.begin(0, ids, options)
    pieces = driver.pieces(0, 60)
    report = driver.report(0)
    driver.end(0)
    return (*pieces, report[0], report[1], report[3], report[4])  # what the cache had is each engine's own


@pytest.mark.parametrize("name", [*SAMPLINGS, *(f"choices: {name}" for name in CHAINS)])
def test_samplers(name: str, two: tuple[Driver, Driver]) -> None:
    choices = name.removeprefix("choices: ")
    options = written(CHAINS[choices]) if choices != name else SAMPLINGS[name]
    options = {**options, "seed": 7, "max_tokens": 40, "flags": int(choices == name)}
    first, second = (answer(driver, REPEATED, dict(options)) for driver in two)
    assert first == second
    assert len(first[0]) > 2


@pytest.mark.parametrize(
    "options",
    [
        {"stop": b"e".hex(), "max_tokens": 30},
        {"stop": b"\xc3\xa9".hex(), "include_stop": 1, "max_tokens": 30},
        {"thinking_open": b"<t>".hex(), "thinking_close": b"a".hex(), "thinking_begin": 1, "flags": 1},
        {"max_tokens": 0},
        {"flags": 1},  # to the context's end
    ],
)
def test_text_and_ends(options: dict[str, Any], two: tuple[Driver, Driver]) -> None:
    for seed in range(4):
        first, second = (answer(driver, ids_of(30, seed), {**options, "seed": seed}) for driver in two)
        assert first == second


def test_texts_become_the_same_tokens(two: tuple[Driver, Driver]) -> None:
    own, other = two
    for text in ("", "hello  hello's 12 x\n\n<tool>", "é漢한", "a" * 500):
        ids = own.tokenize(text)
        assert other.tokenize(text) == ids
        assert other.detokenize(ids) == own.detokenize(ids)
    request = {"messages": [{"role": "user", "content": "Hello <tool>!"}]}
    assert other.chat(request) == own.chat(request)
    assert other.chat_format() == own.chat_format()


@pytest.mark.parametrize("kind", ["json", "value", "compact"])
def test_grammars(kind: str, two: tuple[Driver, Driver]) -> None:
    for driver in two:
        driver.grammar(kind)
    options = {"grammar": kind, "max_tokens": 40, "seed": 3}
    first, second = (answer(driver, ids_of(9), dict(options)) for driver in two)
    assert first == second


def test_grammars_by_their_text(two: tuple[Driver, Driver]) -> None:
    own, other = two
    with pytest.raises(DriverError, match="this library compiles none") as lacking:
        own.grammar_text('root ::= "yes" | "no"')
    assert lacking.value.code == E_LACKS
    other.grammar_text('root ::= "yes" | "no"')
    other.begin(0, ids_of(9), {"grammar": 1, "seed": 1})
    assert other.next(0, 20)[1] in (b"yes", b"no")
    other.end(0)
    other.grammar_text(
        '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], '
        '"additionalProperties": false}'
    )
    other.begin(0, ids_of(9), {"grammar": 1, "seed": 2, "max_tokens": 60})
    assert isinstance(json.loads(other.next(0, 80)[1])["n"], int)
    other.end(0)
    with pytest.raises(DriverError) as wrong:
        other.grammar_text("root ::= ")
    assert wrong.value.code == E_ARGUMENT


def test_replies_beside_each_other(two: tuple[Driver, Driver]) -> None:
    prompts, found = [ids_of(n, n) for n in (5, 31, 64)], []
    for driver in two:
        for i, prompt in enumerate(prompts):
            driver.begin(i, prompt, {"seed": i, "flags": 1})
        with pytest.raises(DriverError, match="all 3 slots") as full:
            driver.begin(3, [1], {})
        assert full.value.code == E_FULL
        found.append([driver.next(i, n) for i, n in ((2, 2), (0, 5), (1, 9), (2, 6), (0, 3))])
        for i in range(3):
            driver.end(i)
    assert found[0] == found[1]


def test_errors_are_the_librarys(two: tuple[Driver, Driver]) -> None:
    for ids, options, code in (
        ([1] * 97, {}, E_LONG),
        ([288], {}, E_ARGUMENT),
        ([], {}, E_ARGUMENT),
        ([1], {"temperature": -1}, E_ARGUMENT),
        ([1], {"biases": "288/1"}, E_ARGUMENT),
        ([1], {"bad_words": "300,-1"}, E_ARGUMENT),
        ([1], {"samplers": "zt"}, E_ARGUMENT),
    ):
        for driver in two:
            with pytest.raises(DriverError) as error:
                driver.begin(0, ids, options)
            assert error.value.code == code, (ids, options, error.value.text)


def test_what_a_worker_lacks(two: tuple[Driver, Driver], tmp_path: Path) -> None:
    other = two[1]
    with pytest.raises(DriverError, match="call satchel_grammar_text") as named:
        other.grammar("order")
    other.begin(0, [1], {"flags": 1})
    with pytest.raises(DriverError, match="saved conversations") as saved:
        other.save(0, tmp_path / "state")
    other.end(0)
    assert (named.value.code, saved.value.code) == (E_LACKS, E_LACKS)


@pytest.fixture
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with Driver(embedded.driver_program(tmp_path_factory)) as made:
        yield made


def test_a_file_without_a_plan(driver: Driver, program: Path, folder: Path) -> None:
    """The app chooses: nothing is started unless it says so, and the facts tell who computes."""
    with pytest.raises(DriverError, match="holds no plan") as unbuilt:
        driver.open(folder / "m.gguf")
    assert unbuilt.value.code == E_UNBUILT
    assert driver.open(folder / "m.gguf", 96, 1, 1, EITHER, program)[-1] == "worker"
    theirs = answer(driver, ids_of(20), {"seed": 1, "max_tokens": 20})
    driver.close()
    assert driver.open(folder / "app.gguf", 96, 1, 1, EITHER, "/nothing/there")[-1] != "worker"
    assert answer(driver, ids_of(20), {"seed": 1, "max_tokens": 20}) == theirs


def test_embeddings(driver: Driver, program: Path, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", "qwen3", qwen3__pooling_type=3)
    with open_gguf(path) as gguf:
        build(gguf, tmp_path / "app.gguf")
    found = []
    for file, engine in (("app.gguf", 0), ("m.gguf", WORKER)):
        driver.open(tmp_path / file, 96, 1, 1, engine, program)
        found.append([driver.embed(text) for text in ("hello", "hello there, you")])
        with pytest.raises(DriverError, match="satchel_embed") as wrong:
            driver.begin(0, [1], {})
        assert wrong.value.code == E_ARGUMENT
        driver.close()
    assert found[0] == found[1]


def test_a_template_that_the_library_does_not_run(driver: Driver, program: Path, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", "qwen3", tokenizer__chat_template=NO_MACHINE)
    with open_gguf(path) as gguf:
        assert "recursive" in build(gguf, tmp_path / "app.gguf").template_refused
    request = {"messages": [{"role": "user", "content": "Hello!"}]}
    driver.open(tmp_path / "app.gguf")
    with pytest.raises(DriverError) as refused:
        driver.chat(request)
    assert refused.value.code == E_UNBUILT
    driver.close()
    driver.open(tmp_path / "m.gguf", 96, 1, 1, WORKER, program)
    text, ids, thinks = driver.chat(request)
    assert (text, thinks, driver.detokenize(ids, 1)) == ("user: Hello!\n>", False, text)
    with pytest.raises(DriverError, match="expected keys") as wrong:
        driver.chat({**request, "model": "m"})
    assert wrong.value.code == E_ARGUMENT


@pytest.mark.parametrize("at", ["begin", "next"])
def test_a_worker_that_is_killed(at: str, driver: Driver, program: Path, folder: Path) -> None:
    driver.open(folder / "m.gguf", 96, 2, 1, WORKER, program)
    driver.begin(0, ids_of(20), {"seed": 1, "flags": 1})
    driver.next(0, 2)
    os.kill(int((program.parent / "pid").read_text()), signal.SIGKILL)
    for _ in range(2):  # now, and from then on
        with pytest.raises(DriverError, match=r"worker process is gone; it ended with signal 9") as gone:
            driver.begin(1, [1], {}) if at == "begin" else driver.next(0, 90)
        assert gone.value.code == E_WORKER
    driver.end(0)
    assert driver.tokenize("hello")  # this needs no worker
    driver.close()
    driver.open(folder / "m.gguf", 96, 2, 1, WORKER, program)
    driver.begin(0, ids_of(20), {"seed": 1, "flags": 1})
    assert len(driver.next(0, 2)[0]) == 2


@pytest.mark.parametrize("at", ["open", "begin", "next", "a message"])
def test_a_worker_that_falls_silent(at: str, driver: Driver, folder: Path, tmp_path: Path) -> None:
    """It is given up after the time that it has told itself, and ended; so no caller waits for ever."""
    alive = wire.HEAD.pack(wire.ANSWER, wire.ALIVE, 8) + wire.number(20)
    opened, begun, *rest = recorded(folder)
    before = {"open": [], "begin": [opened], "next": [opened, begun], "a message": [opened, begun]}
    said = [*before[at], alive, rest[0][:20] if at == "a message" else b""]
    (tmp_path / "told").write_bytes(b"".join(said))
    run = shlex.join([sys.executable, "-I", "-S", "-c", STOPS, str(tmp_path / "told"), str(tmp_path / "pid")])
    program = script(tmp_path / "worker", f"exec {run}")
    told = "the worker process gave no sign of life for 0.02 s and was ended: open the model again"
    if at != "open":
        driver.open(folder / "m.gguf", 96, 1, 1, WORKER, program)
    if at not in ("open", "begin"):
        driver.begin(0, [0], {"flags": 1})
    for _ in range(1 if at == "open" else 2):  # now, and from then on
        with pytest.raises(DriverError) as silent:
            if at == "open":
                driver.open(folder / "m.gguf", 96, 1, 1, WORKER, program)
            elif at == "begin":
                driver.begin(0, [0], {"flags": 1})
            else:
                driver.next(0, 3)
        assert (silent.value.code, silent.value.text) == (E_WORKER, told)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_worker_that_was_stopped_for_a_while(
    two: tuple[Driver, Driver], driver: Driver, program: Path, folder: Path
) -> None:
    """The call waits, and gives what it would have given."""
    options = {"seed": 5, "flags": 1}
    driver.open(folder / "m.gguf", 96, 1, 1, WORKER, program)
    worker = int((program.parent / "pid").read_text())
    driver.begin(0, ids_of(20), options)
    os.kill(worker, signal.SIGSTOP)
    until(lambda: state_of(worker) == "T", "the worker is stopped")
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(driver.next(0, 30)))
    begin(thread)
    os.kill(worker, signal.SIGCONT)
    joined(thread, "the call")
    own = two[0]
    own.begin(0, ids_of(20), options)
    assert found == [own.next(0, 30)]
    own.end(0)


def state_of(process: int) -> str:
    """A letter, such as T for one that is stopped."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.nightly
def test_a_worker_that_is_stopped_for_ever(driver: Driver, program: Path, folder: Path) -> None:
    driver.open(folder / "m.gguf", 96, 1, 1, WORKER, program)
    driver.begin(0, ids_of(20), {"seed": 5, "flags": 1})
    os.kill(int((program.parent / "pid").read_text()), signal.SIGSTOP)
    with pytest.raises(DriverError, match="gave no sign of life for 60 s and was ended") as silent:
        driver.next(0, 90)
    assert silent.value.code == E_WORKER


def test_a_program_that_is_no_worker(driver: Driver, folder: Path, tmp_path: Path) -> None:
    for program, text in (
        (
            tmp_path / "none",
            r"none: the worker process can't be started: No such file .*set `worker` to its program",
        ),
        (script(tmp_path / "echo", "exec cat"), r"sent what is no answer to the call"),
        (script(tmp_path / "ends", "exit 3"), r"is gone; it ended with status 3"),
        (script(tmp_path / "talks", "echo Welcome to this program; exec cat"), r"sent what is no answer"),
    ):
        with pytest.raises(DriverError, match=text) as error:
            driver.open(folder / "m.gguf", 96, 1, 1, WORKER, program)
        assert error.value.code == E_WORKER
    with pytest.raises(DriverError, match="engine: expected one of SATCHEL_ENGINE_, got 3"):
        driver.open(folder / "m.gguf", 96, 1, 1, 3)


def test_a_file_that_is_refused(driver: Driver, program: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes((folder / "m.gguf").read_bytes()[:3000])
    for name, text in (("none.gguf", "none.gguf"), ("cut.gguf", "cut.gguf")):
        with pytest.raises(DriverError, match=text) as error:
            driver.open(tmp_path / name, 96, 1, 1, WORKER, program)
        assert error.value.code == E_FILE
    with pytest.raises(DriverError, match="context") as wrong:
        driver.open(folder / "m.gguf", -5, 1, 1, WORKER, program)
    assert wrong.value.code == E_ARGUMENT


def recorded(folder: Path) -> list[bytes]:
    """The answers of a worker to the calls of `spoken`, each with its head."""
    session, answers = AppSession(), []
    path, ids = wire.data(str(folder / "m.gguf").encode()), wire.data(bytes(4))
    usual = {"repeat_penalty": 1, "typical_p": 1, "top_p": 1, "top_n_sigma": -1}
    numbers = b"".join(wire.REAL.pack(usual.get(name, 0)) for name in NUMBERS)
    asked = wire.number(9) + wire.number(1) + wire.number(1) + wire.number(0) + wire.data(b"")
    lists = wire.data(b"") + wire.data(b"") * 3 + wire.number(-1)
    first = wire.number(1)
    for call, values in (
        (1, path + wire.number(96) + wire.number(1) + wire.number(1) + wire.number(0)),
        (2, ids + asked + numbers + lists),
        *((3, first),) * 3,
        (4, first),
        (6, wire.data(b'root ::= "a"')),
    ):
        code, told = session.answer(call, values)
        assert code == 0, told
        answers.append(wire.HEAD.pack(wire.ANSWER, 0, len(told)) + told)
    session.close()
    return answers


def spoken(driver: Driver, program: Path, folder: Path) -> str:
    """The error of a conversation with a program that says what it likes; "" for none."""
    try:
        driver.open(folder / "m.gguf", 96, 1, 1, WORKER, program)
    except DriverError as error:
        return f"{error.code} {error.text}"
    try:
        driver.tokenize("hello <tool>")
        driver.begin(0, [0], {"flags": 1})
        driver.next(0, 3)
        driver.end(0)
        driver.grammar_text('root ::= "a"')
        driver.chat({"messages": [{"role": "user", "content": "hello"}]})
        return ""
    except DriverError as error:
        driver.end(0)
        return f"{error.code} {error.text}"
    finally:
        driver.close()


def test_a_worker_that_lies(
    folder: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutated answers, under the address sanitizer: each is refused by one line, or read as it stands."""
    answers, rng, found = recorded(folder), random.Random(5), list[str]()
    told = tmp_path / "told"
    run = shlex.join([sys.executable, "-I", "-S", "-c", TALKS, str(told)])
    program = script(tmp_path / "worker", f"exec {run}")
    monkeypatch.setenv("ASAN_OPTIONS", embedded.ASAN_OPTIONS)
    with Driver(embedded.driver_program(tmp_path_factory, sanitized=True)) as driver:
        told.write_bytes(b"".join(answers))
        assert spoken(driver, program, folder) == ""
        for _ in range(60):
            parts = [bytearray(answer) for answer in answers]
            data = parts[rng.choice((0, 0, *range(len(parts))))]
            at = rng.randrange(min(len(data), rng.choice((16, 80, len(data)))))
            kind = rng.randrange(3)
            if kind == 0:
                data[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                data[at // 8 * 8 : at // 8 * 8 + 8] = rng.choice((b"\xff" * 8, bytes(8), b"\0\0\0\1\0\0\0\0"))
            else:
                del data[at:]
            told.write_bytes(b"".join(parts))
            found.append(spoken(driver, program, folder))
    assert sum(bool(text) for text in found) > 20
    assert any(text.startswith(str(E_WORKER)) for text in found)
