"""Saved conversations: the same answer goes on bit for bit, in another process, context and slot; what does
not fit is refused, and damaged bytes do no harm.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import embedded
import pytest
from embedded import Driver, DriverError
from once import made_once
from tiny_file import write_model

from satchel.formats.gguf import open_gguf
from satchel.runtime.aot.build import build

OPTIONS = {"seed": 3, "flags": 1}  # end tokens are tokens as others
HEAD = 40  # bytes of saved_head; its CRC-32 is of what follows, and stands at 16


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedded.driver_program(tmp_path_factory)


@pytest.fixture
def driver(program: Path) -> Iterator[Driver]:
    with Driver(program) as made:
        yield made


def family(factory: pytest.TempPathFactory, arch: str, **more: Any) -> Path:
    keys: dict[str, Any] = {"gemma2__attention__sliding_window": 20} if arch == "gemma2" else {}

    def make(folder: Path) -> None:
        with open_gguf(write_model(folder / "m.gguf", arch, **keys, **more)) as gguf:
            build(gguf, folder / "app.gguf")

    return made_once(factory, f"embed-saved-{arch}-{len(more)}", make) / "app.gguf"


def prompt(count: int) -> list[int]:
    return [int(i) for i in random.Random(count).choices(range(256), k=count)]


@pytest.mark.parametrize("arch", ["qwen3", "gemma2", "mamba2", "qwen3next"])
@pytest.mark.parametrize("told", [1, 6])
def test_an_answer_goes_on(
    arch: str, told: int, program: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path, ids = family(tmp_path_factory, arch), prompt(45)
    saved, again = tmp_path / "Zürich", tmp_path / "again"
    saved.write_bytes(b"an older one")
    with Driver(program) as driver:
        driver.open(path, 80, 2)
        driver.begin(0, prompt(11), OPTIONS)  # so that the other one's blocks are not the first ones
        driver.next(0, 3)
        driver.begin(1, ids, OPTIONS)
        first = driver.next(1, told)[0]
        driver.save(1, saved)
        driver.save(1, again, by_memory=True)
        rest = driver.next(1, 20)[0]
    assert saved.read_bytes() == again.read_bytes()
    for context, slots, by_memory in ((80, 1, False), (96, 3, True)):
        with Driver(program) as driver:
            driver.open(path, context, slots)
            assert driver.load(again if by_memory else saved, by_memory) == ids + first
            driver.begin(0, ids + first, OPTIONS)
            assert driver.next(0, 20)[0] == rest
            assert driver.report(0)[2] == 45 + told - 1  # all that was computed is there


def test_penalties_see_the_tokens(
    driver: Driver, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    options = {**OPTIONS, "frequency_penalty": 1.5, "repeat_last_n": -1, "temperature": 0}
    driver.open(family(tmp_path_factory, "qwen3"), 96, 1)
    driver.begin(0, prompt(20), options)
    first = driver.next(0, 8)[0]
    driver.save(0, tmp_path / "chat")
    rest = driver.next(0, 30)[0]
    driver.end(0)
    driver.begin(0, prompt(30), options)  # another conversation takes the slot
    driver.next(0, 2)
    driver.end(0)
    ids = driver.load(tmp_path / "chat")
    driver.begin(0, ids, options)
    assert (ids[20:], driver.next(0, 30)[0]) == (first, rest)


def test_a_prompt_that_is_not_computed_yet(
    driver: Driver, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    driver.open(family(tmp_path_factory, "qwen3"), 96, 1)
    driver.begin(0, prompt(20), OPTIONS)
    driver.save(0, tmp_path / "chat")
    wanted = driver.next(0, 5)[0]
    driver.end(0)
    assert driver.load(tmp_path / "chat") == prompt(20)
    driver.begin(0, prompt(20), OPTIONS)
    assert driver.next(0, 5)[0] == wanted


def test_what_does_not_fit_is_refused(
    driver: Driver, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    saved, path = tmp_path / "chat", family(tmp_path_factory, "qwen3")
    driver.open(path, 96, 1)
    driver.begin(0, prompt(60), OPTIONS)
    driver.next(0, 1)
    driver.save(0, saved)
    with pytest.raises(DriverError, match="all 1 slots have a reply"):
        driver.load(saved)
    with pytest.raises(DriverError, match=r"no-folder/chat\.part: can't be written: No such file"):
        driver.save(0, tmp_path / "no-folder" / "chat")
    driver.end(0)
    with pytest.raises(DriverError, match="no: can't be read: No such file"):
        driver.load(tmp_path / "no")
    driver.close()
    driver.open(path, 50, 1)
    with pytest.raises(DriverError, match="expected at most 50 tokens, the context, got 61"):
        driver.load(saved)
    driver.close()
    driver.open(family(tmp_path_factory, "gemma2"), 96, 1)
    with pytest.raises(DriverError, match="saved with another model, or another build of it"):
        driver.load(saved)
    driver.close()
    # The same header, other numbers in a tensor: only the weights tell.
    raw = bytearray(path.read_bytes())
    with open_gguf(path) as gguf:
        info = gguf.tensors["blk.0.attn_q.weight"]
        at = info.offset + info.nbytes // 2
    raw[at] ^= 1
    (tmp_path / "other.gguf").write_bytes(raw)
    driver.open(tmp_path / "other.gguf", 96, 1)
    with pytest.raises(DriverError, match="saved with other weights"):
        driver.load(saved)


def mutated(rng: random.Random, raw: bytes) -> bytes:
    """Saved bytes with a few numbers changed, or cut; most with a right checksum."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(HEAD if rng.random() < 0.5 else len(data))
        data[at] = rng.choice((0, 1, 127, 128, 255, data[at] ^ 1 << rng.randrange(8)))
    if rng.random() < 0.2:
        data = data[: rng.randrange(len(data))]
    if rng.random() < 0.8 and len(data) > HEAD:
        struct.pack_into("<I", data, 16, zlib.crc32(data[HEAD:]))
    return bytes(data)


def mutate(driver: Driver, saved: Path, copy: Path, count: int, seed: int) -> tuple[int, int]:
    """How many mutated conversations were refused, and how many went on."""
    rng, raw, refused = random.Random(seed), saved.read_bytes(), 0
    for _ in range(count):
        copy.write_bytes(mutated(rng, raw))
        try:
            ids = driver.load(copy, by_memory=rng.random() < 0.5)
            driver.begin(0, [*ids, 7], {"seed": 1, "flags": 1})
            driver.next(0, 2)
        except DriverError as error:
            assert error.code < 0 and 0 < len(error.text) < 500
            refused += 1
        driver.end(0)
    return refused, count - refused


@pytest.fixture
def hostile(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Driver, Path]]:
    """A sanitized driver with an open model, and a saved conversation of it."""
    monkeypatch.setenv("ASAN_OPTIONS", embedded.ASAN_OPTIONS)
    with Driver(embedded.driver_program(tmp_path_factory, sanitized=True)) as driver:
        driver.open(family(tmp_path_factory, "qwen3next"), 64, 1)
        driver.begin(0, prompt(30), OPTIONS)
        driver.next(0, 3)
        driver.save(0, tmp_path / "chat")
        driver.end(0)
        yield driver, tmp_path / "chat"


def test_some_mutated_conversations(hostile: tuple[Driver, Path], tmp_path: Path) -> None:
    refused, ran = mutate(*hostile, tmp_path / "mutated", 250, seed=0)
    assert min(refused, ran) > 25


@pytest.mark.nightly
def test_a_hundred_thousand_mutated_conversations(hostile: tuple[Driver, Path], tmp_path: Path) -> None:
    refused, ran = mutate(*hostile, tmp_path / "mutated", 100_000, seed=1)
    assert min(refused, ran) > 5000
