"""Choices of tokens that the host makes between steps give the tokens of `Engine`, bit for bit: biases, DRY,
banned and allowed tokens, Mirostat.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import embedded
import pytest
from built_families import FAMILIES, family
from embed_cases import CHAINS, END, REPEATED, written
from embedded import Driver, DriverError
from once import made_once
from tiny_file import write_model

from satchel import Model
from satchel.formats.gguf import open_gguf
from satchel.runtime.aot.build import build

LETTERS = {"d": "dry", "t": "temperature", "e": "penalties", "k": "top_k", "p": "top_p"}


@pytest.fixture
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with Driver(embedded.driver_program(tmp_path_factory)) as made:
        yield made


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        with open_gguf(write_model(folder / "m.gguf", "qwen3")) as gguf:
            build(gguf, folder / "app.gguf")

    return made_once(tmp_path_factory, "embed-choices", make) / "app.gguf"


def keywords(options: Mapping[str, Any]) -> dict[str, Any]:
    """The same as arguments of Model.generate()."""
    return {k: [LETTERS[c] for c in v] if k == "samplers" else v for k, v in options.items()}


def answer(driver: Driver, number: int, ids: list[int], count: int, options: Mapping[str, Any]) -> list[int]:
    driver.begin(number, ids, {**written(options), "max_tokens": count})
    found, _, over = driver.next(number, count + 2)
    assert over
    driver.end(number)
    return found


@pytest.mark.parametrize("name", CHAINS)
def test_the_tokens_are_those_of_the_engine(name: str, driver: Driver, app: Path) -> None:
    driver.open(app, 96, 1)
    with Model.load(app, context=96, slots=1, device="cpu", threads=1) as model:
        for seed in (1, 2):
            reply = model.generate(REPEATED, seed=seed, max_tokens=40, **keywords(CHAINS[name]))
            reply.read()
            wanted = [i for i in reply.ids if i not in model.tokenizer.eog]
            assert answer(driver, 0, REPEATED, 40, {**CHAINS[name], "seed": seed}) == wanted
            assert len(wanted) > 2


@pytest.mark.nightly
@pytest.mark.parametrize("arch", [arch for arch in FAMILIES if arch != "qwen3"])
def test_choices_of_other_families(
    arch: str, driver: Driver, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path, tokens = family(tmp_path_factory, arch), 0
    driver.open(path, 96, 1)
    with Model.load(path, context=96, slots=1, device="cpu", threads=1) as model:
        for name, options in CHAINS.items():
            reply = model.generate(REPEATED, seed=3, max_tokens=40, **keywords(options))
            reply.read()
            wanted = [i for i in reply.ids if i not in model.tokenizer.eog]
            assert answer(driver, 0, REPEATED, 40, {**options, "seed": 3}) == wanted, name
            tokens += len(wanted)
    assert tokens > 10 * len(CHAINS)


def test_each_choice_changes_the_answer(driver: Driver, app: Path) -> None:
    """So none of the comparisons above holds without the choice."""
    driver.open(app, 96, 1)
    for name, options in CHAINS.items():
        kept = ("temperature", "allowed", "samplers", *["logit_bias"] * ("min_tokens" in options))
        without = {k: v for k, v in options.items() if k in kept}
        without = {} if without == options else without
        first = answer(driver, 0, REPEATED, 40, {**options, "seed": 1})
        assert first != answer(driver, 0, REPEATED, 40, {**without, "seed": 1}), name


def test_what_is_held_back_at_the_end_comes_without_a_token(driver: Driver, app: Path) -> None:
    """A byte that begins a character, and then the end: its text is a piece of its own, with no end token."""
    driver.open(app, 96, 1)
    held = 0
    for first in range(128, 256, 3):
        driver.begin(0, REPEATED, {"allowed": f"{first},{END}", "max_tokens": 9, "seed": first})
        ids, pieces, _ = driver.pieces(0, 20)
        driver.end(0)
        assert END not in ids, first
        held += len(pieces) > len(ids)
    assert held > 5


def test_replies_with_and_without_choices_share_steps(driver: Driver, app: Path) -> None:
    driver.open(app, 96, 3)
    mixed: list[dict[str, Any]] = [CHAINS["all"], {}, CHAINS["mirostat 2"]]
    alone = [answer(driver, 0, REPEATED, 12, {**o, "seed": i, "flags": 1}) for i, o in enumerate(mixed)]
    for i, options in enumerate(mixed):
        driver.begin(i, REPEATED, {**written(options), "seed": i, "flags": 1, "max_tokens": 12})
    found: list[list[int]] = [[], [], []]
    for i, count in ((1, 2), (0, 3), (2, 4), (1, 9), (2, 8), (0, 9), (1, 1)):
        found[i] += driver.next(i, count)[0]
    assert found == alone


def test_what_cannot_be_chosen_says_so(driver: Driver, app: Path) -> None:
    driver.open(app, 96, 2)
    for options, text in (
        ({"biases": "288/1"}, "biases: expected token ids of 0 to 287, got 288"),
        ({"biases": "3/1,3/2"}, "biases: expected each token once, got 3 twice"),
        ({"biases": "3/nan"}, "bias of token 3: expected a number up to 1e9, got -?nan"),
        ({"biases": ",".join(f"{i % 288}/1" for i in range(513))}, "biases: expected 0 to 512 of them"),
        ({"allowed": "-1"}, "allowed: expected token ids of 0 to 287, got -1"),
        ({"bad_words": "3"}, "bad_words: expected token sequences, with a -1 behind each"),
        ({"bad_words": "3,-1,-1"}, "bad_words: expected a token or more in each sequence"),
        ({"dry_multiplier": "1", "dry_breakers": "ff"}, "expected UTF-8, got another byte at 0"),
        ({"dry_base": "-1"}, "dry_base: expected a number from 0 to 100, got -1"),
        ({"mirostat_eta": "2"}, "mirostat_eta: expected a number from 0 to 1, got 2"),
    ):
        with pytest.raises(DriverError, match=text):
            driver.begin(0, [1], options)
    driver.begin(0, [1], {"seed": 1, "flags": 1})
    driver.begin(1, [1], {"allowed": "9", "biases": "9/-inf"})
    with pytest.raises(DriverError, match="the reply's choices together allow no token"):
        driver.next(1, 1)
    with pytest.raises(DriverError, match="the reply's choices together allow no token"):
        driver.next(1, 1)
    assert len(driver.next(0, 3)[0]) == 3  # another reply goes on
