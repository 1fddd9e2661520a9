"""Grammars in C: the tokens that may come are those of the Python engine's grammar, and so are answers;
mutated sections are refused or do no harm.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import embedded
import numpy as np
import pytest
from embedded import Driver, DriverError
from once import made_once
from tiny_file import write_model

from satchel import Model
from satchel.formats.gguf import open_gguf
from satchel.formats.tokenizer import Tokenizer, build_tokenizer
from satchel.runtime.aot.build import build
from satchel.runtime.grammar import AnyJson, Spec, compile_grammar
from satchel.runtime.grammar.spec import spec_of

ORDER = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "count": {"type": "integer"},
        "kind": {"enum": ["he", "hello", "x"]},
        "parts": {"type": "array", "items": {"$ref": "#"}, "maxItems": 3},
    },
    "required": ["count"],
    "additionalProperties": False,
}
SUM = 'root ::= term ("+" term)*\nterm ::= "he" "llo"? | [0-9]{1,3} | "(" root ")"'
TEXTS = {"order": json.dumps(ORDER), "sum": SUM}
SPECS: dict[str, Spec] = {
    "order": spec_of(ORDER),
    "sum": spec_of(SUM),
    "json": AnyJson(),
    "value": AnyJson(anything=True),
    "compact": AnyJson(spaces=False),
}


def built(path: Path, target: Path) -> None:
    with open_gguf(path) as gguf:
        build(gguf, target, grammars=TEXTS)


def model_with_grammars(factory: pytest.TempPathFactory) -> Path:
    folder = made_once(
        factory,
        "embed-grammars",
        lambda at: built(write_model(at / "m.gguf", markers=("<mark>", "{\n  ")), at / "app.gguf"),
    )
    return folder / "app.gguf"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_with_grammars(tmp_path_factory)


class Masks:
    """A process of masks.c."""

    def __init__(self, program: Path, app: Path) -> None:
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.say(f"open {app}") == "ok"

    def say(self, line: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def mask(self) -> tuple[bool, bool, set[int]]:
        """Whether the text is complete, whether it must end, and the tokens that may come."""
        complete, finished, *words = self.say("mask").split()
        raw = np.array([int(word, 16) for word in words], np.uint32)
        found = np.flatnonzero(np.unpackbits(raw.view(np.uint8), bitorder="little"))
        return complete == "1", finished == "1", set(found.tolist())


@pytest.fixture(scope="module")
def masks_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Path(__file__).with_name("masks.c")
    return embedded.compile_program(tmp_path_factory, tmp_path_factory.mktemp("masks") / "masks", [source])


def compared(masks: Masks, name: str, tokenizer: Tokenizer, walks: int, seed: int) -> int:
    """Walks at random beside the engine's grammar; gives the number of tokens."""
    grammar, rng, taken = compile_grammar(tokenizer, SPECS[name]), random.Random(seed), 0
    bitmask = np.zeros(-(-tokenizer.vocab_size // 32), np.uint32)
    for _ in range(walks):
        assert masks.say(f"grammar {name}") == "ok"
        theirs = grammar.constraint()
        for _ in range(40):
            theirs.fill(bitmask)
            wanted = set(np.flatnonzero(np.unpackbits(bitmask.view(np.uint8), bitorder="little")).tolist())
            complete, finished, ours = masks.mask()
            assert (complete, finished) == (theirs.complete, theirs.finished)
            assert ours == wanted - tokenizer.eog
            if not ours:
                break
            short = sorted(t for t in ours if len(tokenizer.token_bytes(t)) < 3)
            token = rng.choice(short if short and rng.random() < 0.5 else sorted(ours))
            theirs.accept(token)
            assert masks.say(f"take {token}") == "ok"
            taken += 1
    return taken


@pytest.mark.parametrize("name", SPECS)
def test_the_tokens_that_may_come_are_the_engines(name: str, masks_program: Path, app: Path) -> None:
    with open_gguf(app) as gguf:
        tokenizer = build_tokenizer(gguf.metadata, source="app.gguf")
    masks = Masks(masks_program, app)
    assert compared(masks, name, tokenizer, 8, seed=3) > 20
    masks.process.communicate()


@pytest.mark.model
def test_a_real_vocabulary(masks_program: Path, bundled_model: Path, tmp_path: Path) -> None:
    built(bundled_model, tmp_path / "app.gguf")
    with open_gguf(bundled_model) as gguf:
        tokenizer = build_tokenizer(gguf.metadata, source="app.gguf")
    masks = Masks(masks_program, tmp_path / "app.gguf")
    for name in SPECS:
        assert compared(masks, name, tokenizer, 4, seed=4) > 20
    masks.process.communicate()


@pytest.fixture
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with Driver(embedded.driver_program(tmp_path_factory)) as made:
        yield made


@pytest.mark.parametrize("name", SPECS)
def test_answers_are_the_engines(name: str, driver: Driver, app: Path) -> None:
    driver.open(app, 96, 1)
    driver.grammar(name)
    options: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 100, "top_k": 0, "top_p": 1, "min_p": 0},
    ]
    with Model.load(app, context=96, slots=1, device="cpu", threads=1) as model:
        for seed, more in enumerate((*options, options[1])):
            reply = model.generate([5, 9], seed=seed, max_tokens=50, grammar=SPECS[name], **more)
            text = reply.read()
            driver.begin(0, [5, 9], {**more, "seed": seed, "max_tokens": 50, "grammar": name})
            ids, said, over = driver.next(0, 60)
            driver.end(0)
            assert over
            assert (ids, said.decode()) == ([i for i in reply.ids if i not in model.tokenizer.eog], text)


def test_replies_share_a_grammar(driver: Driver, app: Path) -> None:
    driver.open(app, 96, 3)
    driver.grammar("order")
    wild = {"temperature": 100, "top_k": 0, "top_p": 1, "min_p": 0, "grammar": "order", "max_tokens": 20}
    alone = []
    for seed in range(3):
        driver.begin(0, [3], {**wild, "seed": seed})
        alone.append(driver.next(0, 20)[0])
        driver.end(0)
    for seed in range(3):
        driver.begin(seed, [3], {**wild, "seed": seed})
    found: list[list[int]] = [[], [], []]
    for i, count in ((2, 3), (0, 7), (1, 20), (2, 17), (0, 13)):
        found[i] += driver.next(i, count)[0]
    assert found == alone


def test_what_does_not_fit_says_so(driver: Driver, app: Path) -> None:
    driver.open(app, 96, 1)
    with pytest.raises(
        DriverError, match=r"grammar no: the file has none of this name: `satchel build --grammar`"
    ):
        driver.grammar("no")
    driver.grammar("sum")
    with pytest.raises(DriverError, match="an end token ends the answer"):
        driver.begin(0, [1], {"grammar": "sum", "flags": 1})
    driver.begin(0, [1], {"grammar": "sum", "allowed": "65"})  # "b", which no sum begins with
    with pytest.raises(DriverError, match="choices together allow no token"):
        driver.next(0, 1)


def section_of(path: Path) -> tuple[int, int]:
    raw = path.read_bytes()
    at = raw.index(b"SATGRA01")
    return at, struct.unpack_from("<I", raw, at + 8)[0]


def mutated(rng: random.Random, raw: bytes) -> bytes:
    """A grammar's section with a few numbers changed, and a right checksum."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = 16 + rng.randrange((len(data) - 16) // 4 if rng.random() < 0.8 else 5) * 4
        number = struct.unpack_from("<I", data, at)[0]
        changed = rng.choice(
            (0, 1, number + 1, number - 1, number ^ 1 << rng.randrange(32), rng.randrange(500))
        )
        struct.pack_into("<I", data, at, changed % (1 << 32))
    struct.pack_into("<I", data, 12, zlib.crc32(data[16:]))
    return bytes(data)


def mutate(driver: Driver, app: Path, copy: Path, count: int, seed: int) -> tuple[int, int]:
    """How many mutated sections were refused or ended their answer with an error, and how many ran."""
    shutil.copyfile(app, copy)
    rng, (at, size), raw, refused = random.Random(seed), section_of(app), app.read_bytes(), 0
    driver.open(copy, 48, 1)
    with copy.open("r+b") as file:
        for i in range(count):
            file.seek(at)
            file.write(mutated(rng, raw[at : at + size]))
            file.flush()
            try:
                driver.grammar("order")
                options = {"temperature": 100, "top_k": 0, "seed": i, "grammar": "order"}
                driver.begin(0, [5], options)
                driver.next(0, 20)
            except DriverError as error:
                assert error.code < 0 and 0 < len(error.text) < 500
                refused += 1
            driver.end(0)
    return refused, count - refused


@pytest.fixture
def hostile(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setenv("ASAN_OPTIONS", embedded.ASAN_OPTIONS)
    with Driver(embedded.driver_program(tmp_path_factory, sanitized=True)) as driver:
        yield driver


def test_some_mutated_grammars(hostile: Driver, app: Path, tmp_path: Path) -> None:
    refused, ran = mutate(hostile, app, tmp_path / "m.gguf", 250, seed=0)
    assert min(refused, ran) > 25


@pytest.mark.nightly
def test_a_hundred_thousand_mutated_grammars(hostile: Driver, app: Path, tmp_path: Path) -> None:
    refused, ran = mutate(hostile, app, tmp_path / "m.gguf", 100_000, seed=1)
    assert min(refused, ran) > 5000
