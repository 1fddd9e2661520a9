"""A18 of the hostile requests: a model with damaged weights never answers silently. Every request fails with
an error that names the file and what to do.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from tiny_file import write_model

from satchel import Model
from satchel.cli.main import main
from satchel.errors import ModelError, RequestError
from satchel.runtime.engine.finite import check_hidden, check_logits
from satchel.runtime.sampling import GREEDY, NONE, Sampling, lost
from satchel.runtime.speculation import Speculation

PROMPT = [1, 2, 3, 4, 5]


def norm_of(value: float) -> Callable[[tiny.TinyWeights], None]:
    """Damages every row: one weight of the last norm."""

    def change(weights: tiny.TinyWeights) -> None:
        weights.changeable("output_norm.weight").view(np.float32)[3] = value

    return change


def one_row(weights: tiny.TinyWeights) -> None:
    """Damages the logit of one token only: the scale of a block of the head is NaN."""
    head = "output.weight" if "output.weight" in weights.tensors else "token_embd.weight"
    weights.changeable(head)["d"][77, 0] = np.float16(np.nan)


DAMAGES = {"NaN": norm_of(np.nan), "infinity": norm_of(np.inf), "one row": one_row}


@pytest.fixture(scope="module", params=DAMAGES)
def damaged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged")
    return write_model(folder / "bad.gguf", change=DAMAGES[request.param])


@pytest.fixture(scope="module")
def model(damaged: Path) -> Iterator[Model]:
    with Model.load(damaged, slots=3, threads=1) as found:
        yield found


def ask(model: Model, **how: Any) -> str:
    return model.generate(PROMPT, max_tokens=4, **how).read()


ASKED: dict[str, Callable[[Model], object]] = {
    "greedy": lambda m: ask(m, sampling=GREEDY),
    "drawn": lambda m: ask(m, sampling=Sampling(temperature=1, seed=3)),
    "logprobs": lambda m: ask(m, logprobs=3),
    "biased": lambda m: ask(m, sampling=Sampling(logit_bias=((5, 100.0),))),
    "masked": lambda m: ask(m, sampling=Sampling(bad_words=((5,), (6, 7)))),
    "chat": lambda m: m.chat([{"role": "user", "content": "hi"}], max_tokens=4).read(),
    "several": lambda m: m.answers(PROMPT, 2, max_tokens=4),
    "logits": lambda m: m.logits(PROMPT),
    "prompt_logprobs": lambda m: m.prompt_logprobs(PROMPT),
    "score": lambda m: m.score(PROMPT, [[7, 8], [9]]),
    "beam_search": lambda m: m.beam_search(PROMPT, 2, 3),
}


@pytest.mark.parametrize("what", ASKED)
def test_a18_damaged_weights_are_an_error_that_names_the_file(model: Model, what: str) -> None:
    with pytest.raises(ModelError, match=r"bad\.gguf: .*NaN or infinity.*satchel verify .*bad\.gguf"):
        ASKED[what](model)


def test_a18_embeddings_of_a_damaged_model_are_an_error(tmp_path: Path) -> None:
    with Model.load(write_model(tmp_path / "bad.gguf", change=norm_of(np.nan)), threads=1) as model:
        for call in (model.embed, model.embed_tokens):
            with pytest.raises(ModelError, match=r"bad\.gguf.*hidden states.*satchel verify"):
                call(["a text"])


def test_a18_a_worker_process_and_a_repeated_prompt_say_the_same(tmp_path: Path) -> None:
    path = write_model(tmp_path / "bad.gguf", change=one_row)
    with Model.load(path, threads=1, worker="process") as model:
        for what in ("greedy", "logprobs", "logits", "score", "greedy"):
            with pytest.raises(ModelError, match=r"bad\.gguf.*satchel verify"):
                ASKED[what](model)


def test_a18_one_request_of_a_step_fails_and_the_others_go_on(tmp_path: Path) -> None:
    """The embedding of one token is damaged: only a prompt with that token fails."""

    def untied(weights: tiny.TinyWeights) -> None:
        for kept in (weights.tensors, weights.shapes, weights.formats):
            kept["output.weight"] = kept["token_embd.weight"]

    def harmed_row(weights: tiny.TinyWeights) -> None:
        untied(weights)
        weights.changeable("token_embd.weight")["d"][200, 0] = np.float16(np.nan)

    good = write_model(tmp_path / "good.gguf", change=untied)
    bad = write_model(tmp_path / "bad.gguf", change=harmed_row)
    how: dict[str, Any] = {"max_tokens": 12, "sampling": GREEDY, "ignore_eos": True}
    with Model.load(good, threads=1) as model:
        wanted = model.generate(PROMPT, **how)
        wanted.read()
    with Model.load(bad, threads=1, slots=2) as model:
        fine, harmed = model.generate(PROMPT, **how), model.generate([200, 1], **how)
        fine.start()
        with pytest.raises(ModelError, match="satchel verify"):
            harmed.read()
        fine.read()
        assert fine.ids == wanted.ids


def test_a18_speculation_and_a_damaged_draft_model(tmp_path: Path, model: Model) -> None:
    good = write_model(tmp_path / "good.gguf")
    for path, how in (
        (model.path, Speculation(lookup=True)),
        (good, Speculation(draft_model=model.path)),
    ):
        with (
            Model.load(path, threads=1, speculation=how) as speculating,
            pytest.raises(ModelError, match=r"bad\.gguf.*satchel verify"),
        ):
            speculating.generate([1, 2, 3] * 5, max_tokens=40, ignore_eos=True).read()


def test_a18_perplexity_and_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    damaged, text = write_model(tmp_path / "bad.gguf", change=one_row), tmp_path / "text.txt"
    text.write_text("some words that are read " * 40)
    for command in (
        ["run", "-m", str(damaged), "-p", "hi", "-n", "4"],
        ["perplexity", "-m", str(damaged), "-f", str(text), "-c", "64"],
    ):
        assert main(command) not in (0, None), command
        told = capsys.readouterr()
        assert "satchel verify" in told.err and "Traceback" not in told.err


def test_what_a_processor_makes_of_logits_is_its_own_affair(tmp_path: Path) -> None:
    """A token with NaN is never sampled, one with +inf always; no token left is the processor's error, not
    the model's.
    """

    def only_nine(past: Any, logits: Any) -> None:
        logits[:] = np.nan
        logits[9] = np.inf

    def nothing(past: Any, logits: Any) -> None:
        logits[:] = -np.inf

    with Model.load(write_model(tmp_path / "good.gguf"), threads=1) as model:
        reply = model.generate(PROMPT, max_tokens=2, logits_processors=[only_nine], ignore_eos=True)
        reply.read()
        assert reply.ids == [9, 9]
        with pytest.raises(RequestError, match="left no token"):
            ask(model, logits_processors=[nothing])


def test_what_counts_as_lost() -> None:
    row = np.zeros(8, np.float32)
    assert not lost(row)
    row[3] = -np.inf
    check_logits(row[None], "m")
    for value in (np.nan, np.inf):
        bad = row.copy()
        bad[-1] = value
        assert lost(bad)
        with pytest.raises(ModelError, match="m: expected numbers"):
            check_logits(np.stack([row, bad]), "m")
    assert lost(np.full(4, -np.inf, np.float32)) and NONE == -1
    with pytest.raises(ModelError, match="hidden states"):
        check_hidden(row[None], "m")
    check_logits(np.empty((0, 8), np.float32), "m")
