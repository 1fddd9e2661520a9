"""libsatchel for Windows, under Wine, gives the tokens, texts and prompts of the engine on this machine with
the same kernel set. By day a sample of each comparison that other files make natively; by night all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import under_wine
from built_families import FAMILIES, answer, built, family, ids_of, wanted
from embed_cases import SAMPLINGS
from embedded import Driver, WordsDriver, build_words
from once import made_once
from tiny_file import write_model
from toy_tokenizers import TOYS, toy

from satchel import Model
from satchel.runtime.sampling import Sampling

sys.path.insert(0, str(Path(__file__).parent))
import test_choices
import test_embeddings
import test_grammars
import test_same_tokens
import test_saved
import test_templates
import test_tokenizers

DAY = ("gpt2", "llama", "t5", "bert")  # a vocabulary for each algorithm of tokenizers
TEMPLATES = sorted(test_templates.SOURCES)
night = pytest.mark.nightly


@pytest.fixture(scope="module", autouse=True)
def wine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with under_wine.services(tmp_path_factory):
        yield


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return under_wine.program(tmp_path_factory, "driver")


@pytest.fixture
def driver(program: Path) -> Iterator[Driver]:
    with Driver(program) as made:
        yield made


@pytest.fixture
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WordsDriver]:
    with WordsDriver(under_wine.program(tmp_path_factory, "words")) as made:
        yield made


@pytest.mark.parametrize("arch", FAMILIES)
def test_a_family(arch: str, driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Two contexts and numbers of slots; prompts that the engine gets in pieces."""
    test_same_tokens.test_families(arch, driver, tmp_path_factory)


def test_samplers_and_choices(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = family(tmp_path_factory, "qwen3")
    driver.open(path, 96, 1)
    with Model.load(path, context=96, slots=1, device="cpu", threads=1) as model:
        for seed, (name, options) in enumerate(SAMPLINGS.items()):
            found = answer(driver, ids_of(20, seed), 20, options, seed)
            sampling = test_same_tokens.sampling_of(options, seed)
            assert found == wanted(model.engine, ids_of(20, seed), 20, sampling), name


def test_replies_share_steps(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> None:
    test_same_tokens.test_replies_beside_each_other("gemma2", driver, tmp_path_factory)


def test_bfloat16(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> None:
    def make(folder: Path) -> None:
        built(write_model(folder / "m.gguf", "qwen3", "bf16"))

    path = made_once(tmp_path_factory, "embed-bf16", make) / "m.app.gguf"
    assert driver.open(path, 96, 1)[3] == under_wine.kernels()
    with Model.load(path, context=96, slots=1, device="cpu", threads=1) as model:
        assert answer(driver, ids_of(30), 20, {}, 4) == wanted(model.engine, ids_of(30), 20, Sampling(seed=4))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if i == 0 else night) for i, n in enumerate(test_grammars.SPECS)]
)
def test_a_grammar(name: str, driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = test_grammars.model_with_grammars(tmp_path_factory)
    test_grammars.test_answers_are_the_engines(name, driver, path)


def compare(words: WordsDriver, folder: Path, name: str, texts: int) -> None:
    tokenizer = test_tokenizers.opened(words, folder, toy(name))
    for text in test_tokenizers.random_texts(texts, 1):
        test_tokenizers.compare(words, tokenizer, text)


@pytest.mark.parametrize("name", [name if name in DAY else pytest.param(name, marks=night) for name in TOYS])
def test_a_tokenizer(name: str, words: WordsDriver, tmp_path: Path) -> None:
    compare(words, tmp_path, name, 30)


def test_a_template(driver: Driver, tmp_path: Path) -> None:
    assert test_templates.compare(driver, TEMPLATES[0], tmp_path, 8) > 2


def test_a_saved_conversation(
    program: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    test_saved.test_an_answer_goes_on("qwen3next", 6, program, tmp_path, tmp_path_factory)


# By night, whole.


@night
@pytest.mark.parametrize("arch", test_same_tokens.OTHERS)
def test_every_other_family(arch: str, driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> None:
    test_same_tokens.test_every_other_family(arch, driver, tmp_path_factory)


@night
@pytest.mark.parametrize("arch", FAMILIES)
def test_every_sampler_and_choice(
    arch: str, driver: Driver, tmp_path_factory: pytest.TempPathFactory
) -> None:
    test_same_tokens.test_samplers_of_other_families(arch, driver, tmp_path_factory)
    driver.close()
    test_choices.test_choices_of_other_families(arch, driver, tmp_path_factory)


@night
@pytest.mark.parametrize("arch", ["qwen3", "gemma2", "mamba2", "qwen3next"])
def test_every_way_of_slots(
    arch: str, program: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Driver(program) as driver:
        test_same_tokens.test_replies_beside_each_other(arch, driver, tmp_path_factory)
    for told in (1, 6):
        test_saved.test_an_answer_goes_on(arch, told, program, tmp_path, tmp_path_factory)


@night
@pytest.mark.parametrize("name", test_embeddings.MODELS)
def test_vectors(name: str, driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> None:
    test_embeddings.test_vectors(name, driver, tmp_path_factory)


@night
@pytest.mark.parametrize("path", test_tokenizers.FILES, ids=lambda path: path.stem)
def test_every_vocabulary(path: Path, words: WordsDriver, tmp_path: Path) -> None:
    tokenizer = build_words(path, tmp_path / "app.gguf")
    words.open(tmp_path / "app.gguf")
    for text in test_tokenizers.random_texts(1000, 4):
        test_tokenizers.compare(words, tokenizer, text)


@night
def test_every_pattern(words: WordsDriver, tmp_path: Path) -> None:
    for row, name in test_tokenizers.FIRST.items():
        test_tokenizers.test_every_pattern(name, row, words, tmp_path)


@night
def test_every_template(driver: Driver, tmp_path: Path) -> None:
    for name in TEMPLATES:
        assert test_templates.compare(driver, name, tmp_path, 400) > 100, name
