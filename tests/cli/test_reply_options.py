"""Options of reasoning, context overflow, workers, reports and several completions: the library's arguments,
the output, and usage errors.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from chat_model import write_chat_model
from fake_model import FakeModel
from tiny_file import write_model

from satchel.cli.main import main
from satchel.cli.reports import drawn, lines, plain_values, report_rows
from satchel.runtime.api.usage_report import UsageReport
from satchel.runtime.kv import Miss
from satchel.runtime.sampling import Sampling

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    for name in [n for n in os.environ if n.startswith(("SATCHEL_", "LLAMA_ARG_"))]:
        monkeypatch.delenv(name)

    def run(*args: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8"))
        code = main(list(args))
        return code, *capfd.readouterr()

    return run


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeModel:
    found = FakeModel()
    monkeypatch.setattr("satchel.runtime.api.model.Model.load", found.load)
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    return write_model(tmp_path_factory.mktemp("m") / "m.gguf", tokenizer__chat_template=template)


@pytest.mark.parametrize(
    ("args", "reasoning"),
    [
        ("--reasoning on", True),
        ("--reasoning off", False),
        ("-rea low", "low"),
        ("--reasoning 200", 200),
        ("--reasoning 0", 0),
        ("--reasoning-effort high", "high"),
        ("--reasoning-budget 0", 0),
        ("--reasoning_budget 7", 7),
    ],
)
@pytest.mark.parametrize("command", ["run", "chat"])
def test_how_much_is_thought(call: Run, fake: FakeModel, command: str, args: str, reasoning: Any) -> None:
    prompt = ["-p", "hi"] if command == "run" else []
    assert (
        call(command, "-m", "f.gguf", *prompt, *args.split(), stdin="hi\n" if command == "chat" else "")[0]
        == 0
    )
    assert fake.asked[0]["reasoning"] == reasoning
    assert type(fake.asked[0]["reasoning"]) is type(reasoning)


@pytest.mark.parametrize("args", ["", "--reasoning auto", "--reasoning-budget -1"])
def test_by_default_a_model_thinks_as_it_is_used_to(call: Run, fake: FakeModel, args: str) -> None:
    assert call("run", "-m", "f.gguf", "hi", *args.split())[0] == 0
    assert fake.asked[0]["reasoning"] is None and fake.loaded["worker"] == "thread"


@pytest.mark.parametrize(
    ("args", "policy"),
    [
        ("run hi", "shift"),
        ("run hi -no-cnv", "error"),
        ("run hi --regex a", "error"),
        ("complete hi", "error"),
    ],
)
def test_a_conversation_shifts_by_default(call: Run, fake: FakeModel, args: str, policy: str) -> None:
    name, *rest = args.split()
    fake.scripts.append(["a"])
    call(name, "-m", "f.gguf", *rest)
    assert fake.asked[0]["on_overflow"] == policy


@pytest.mark.parametrize(
    ("args", "policy"),
    [
        ("--on-overflow shift", "shift"),
        ("--context-shift", "shift"),
        ("--no-context-shift", "error"),
        ("--on-overflow truncate-middle", "truncate-middle"),
    ],
)
@pytest.mark.parametrize("raw", [True, False])
def test_what_a_full_context_means(call: Run, fake: FakeModel, raw: bool, args: str, policy: str) -> None:
    assert call("run", "-m", "f.gguf", "hi", *args.split(), *(["-no-cnv"] if raw else []))[0] == 0
    assert fake.asked[0]["on_overflow"] == policy


def test_loading_is_told_of_worker_and_answers(call: Run, fake: FakeModel) -> None:
    assert call("run", "-m", "f.gguf", "hi", "--worker", "process")[0] == 0
    assert (fake.loaded["worker"], fake.loaded["slots"], fake.loaded["sandbox"]) == ("process", 1, True)
    for command in ("run", "chat"):
        assert call(command, "-m", "f.gguf", "--worker=process", "--no-sandbox", stdin="hi\n")[0] == 0
        assert (fake.loaded["worker"], fake.loaded["sandbox"]) == ("process", False)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("--reasoning on --reasoning-budget 3", "--reasoning-budget: --reasoning is given already"),
        ("--reasoning -5", "--reasoning: expected auto, on, off, a word or a number of tokens, got '-5'"),
        ("--reasoning 1e3", "--reasoning: expected"),
        ("--reasoning-budget -2", "--reasoning-budget"),
        ("--reasoning on -no-cnv", "--reasoning: raw completion"),
        ("--on-overflow cut", "--on-overflow: expected one of error, shift, truncate-middle, got cut"),
        ("--on-overflow error --context-shift", "--context-shift: --on-overflow is given already"),
        ("--context-shift --regex a", "--on-overflow: structured output cannot shift"),
        ("--worker fork", "--worker: worker is 'fork': expected one of thread, process"),
        ("--n-completions 0", "--n-completions"),
        ("--n-completions 129", "--n-completions"),
        ("--n-completions 3 --best-of 2", "--best-of: 2 is less than --n-completions, 3"),
        ("--best-of 2 --temp 0", "the temperature is 0"),
        ("--logprobs 3", "--logprobs: log probabilities are printed with --json"),
        ("--logprobs 21 --json", "--logprobs"),
        ("-np 0", "-np"),
    ],
)
def test_wrong_use_is_said_before_a_model_is_loaded(
    call: Run, fake: FakeModel, args: str, words: str
) -> None:
    code, out, err = call("run", "-m", "f.gguf", "hi", *args.split())
    assert (code, out, fake.loaded) == (2, "", {})
    assert words in err and err.count("\n") == 1


def test_a_grammar_and_a_session_go_with_a_worker_process(call: Run, fake: FakeModel, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    assert call("run", "-m", "f.gguf", "hi", "--worker", "process", "--choice", "a")[0] == 0
    assert fake.loaded["worker"] == "process"
    code = call("chat", "-m", "f.gguf", "--session", str(kept), "--worker", "process", stdin="hi\n")[0]
    assert (code, fake.loaded["worker"], kept.exists()) == (0, "process", True)


@pytest.mark.parametrize("command", ["run", "chat"])
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--regex", "(a"], "a ( without )"),
        (["--json-schema", '{"type":"objekt"}'], "#/type"),
        (["--grammar", "root ::= foo"], "'foo'"),
        (["--json-schema-file", "/does/not/exist"], "/does/not/exist"),
    ],
)
def test_a_bad_grammar_is_said_before_a_model_is_loaded(
    call: Run, fake: FakeModel, command: str, args: list[str], words: str
) -> None:
    code, out, err = call(command, "-m", "f.gguf", "-p", "hi", *args)
    assert (code, out, fake.loaded) == (1, "", {})
    assert words in err and err.count("\n") == 1


def test_notes_of_an_answer_are_said(call: Run, fake: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = fake.generate

    def noted(*args: Any, **how: Any) -> Any:
        reply = begin(*args, **how)
        reply.notes = ("5 tokens were left out",)
        return reply

    monkeypatch.setattr(fake, "generate", noted)
    assert call("run", "-m", "f.gguf", "hi") == (0, "Hello!\n", "satchel: note: 5 tokens were left out\n")
    code, out, err = call("chat", "-m", "f.gguf", stdin="hi\n")
    assert (code, out) == (0, "Hello!\n") and "note: 5 tokens were left out" in err


# With a model


def run_json(call: Run, model: Path, *args: str) -> dict[str, Any]:
    code, out, err = call("run", "-m", str(model), "hello", "-c", "96", "--json", "-n", "6", "-s", "3", *args)
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    return found


def test_log_probabilities_and_the_report(call: Run, model: Path) -> None:
    found = run_json(call, model, "--logprobs", "2", "--report", "--ignore-eos", "-l", "5-inf")
    told, report = found["logprobs"], found["report"]
    assert len(told) == found["generated_tokens"] == report["generated_tokens"] == 6
    assert all(len(one["top"]) == 2 and one["logprob"] <= 0 and one["rank"] >= 0 for one in told)
    assert report["sampling"]["seed"] == found["seed"] == 3
    assert report["sampling"]["logit_bias"] == [[5, "-inf"]]
    assert report["steps"] >= 6 and report["bandwidth_share"] > 0


def test_thinking_changes_the_prompt_of_a_model_that_knows_it(call: Run, tmp_path: Path) -> None:
    thinks = write_chat_model(tmp_path / "thinks.gguf")
    usual, off = (run_json(call, thinks, "--reasoning", how) for how in ("auto", "off"))
    assert off["prompt_tokens"] > usual["prompt_tokens"]
    assert run_json(call, thinks, "--reasoning-budget", "0")["text"] == off["text"]
    code, out, err = call("run", "-m", str(thinks), "hi", "--reasoning", "low")
    assert (code, out) == (1, "") and "reasoning is 'low'" in err


def test_a_model_that_cannot_think_is_not_asked_to(call: Run, model: Path) -> None:
    code, out, err = call("run", "-m", str(model), "hi", "--reasoning", "on")
    assert (code, out) == (1, "") and "does not support thinking" in err
    assert run_json(call, model, "--reasoning", "off")["text"] == run_json(call, model)["text"]


def test_a_full_context_shifts_and_says_so(call: Run, model: Path) -> None:
    args = ("run", "-m", str(model), "hello", "-c", "32", "-n", "60", "-s", "3", "--ignore-eos", "--json")
    code, out, err = call(*args, "--report")
    found = json.loads(out)
    assert code == 0 and found["generated_tokens"] == 60
    assert found["report"]["shifts"] > 0 and found["report"]["cut_tokens"] > 0
    assert (
        "satchel: note: the context was full" in err and "older tokens were forgotten; --on-overflow" in err
    )
    code, out, err = call(*args, "--no-context-shift")
    assert code == 0 and json.loads(out)["generated_tokens"] < 60
    assert "the context of 32 tokens is full; -c sets another size" in err


def test_a_long_conversation_loses_its_middle_and_says_so(call: Run, model: Path) -> None:
    turns = "".join(f"number {i}\n" for i in range(12))
    args = ("chat", "-m", str(model), "-c", "64", "-n", "3", "-s", "3")
    code, _, err = call(*args, "--on-overflow", "truncate-middle", stdin=turns)
    assert code == 0 and "were left out of the middle of the prompt" in err
    code, _, err = call(*args, "--on-overflow", "error", stdin=turns)
    assert code == 1 and "the context holds 64: /clear forgets" in err


def test_a_long_conversation_shifts_and_says_so(call: Run, model: Path) -> None:
    turns = "".join(f"number {i}\n" for i in range(12))
    code, _, err = call("chat", "-m", str(model), "-c", "64", "-n", "3", "-s", "3", stdin=turns)
    assert code == 0 and "the context of 64 tokens is full: " in err and "messages are forgotten" in err


def test_an_answer_that_shifts_without_end_is_ended(call: Run, model: Path) -> None:
    code, out, err = call(
        "run", "-m", str(model), "hello", "-c", "32", "-s", "3", "--ignore-eos", "--json", stdin=""
    )
    assert code == 0 and json.loads(out)["generated_tokens"] == 4 * 32
    assert "the answer was ended after 4 contexts; -n sets another limit" in err


def test_an_engine_in_a_process_of_its_own_says_the_same(call: Run, model: Path) -> None:
    assert run_json(call, model, "--worker", "process")["text"] == run_json(call, model)["text"]
    code, _, err = call("chat", "-m", str(model), "-c", "96", "-n", "3", "--worker", "process", stdin="hi\n")
    assert (code, err) == (0, "")


def test_an_answer_that_is_cut_says_what_allows_more(call: Run, model: Path) -> None:
    args = ("-m", str(model), "-c", "96", "-n", "3", "--regex", "[a-z]{200}", "-s", "3")
    code, _, err = call("run", "hello", *args)
    assert code == 0 and err.endswith("; -n allows more tokens\n") and err.count("\n") == 1
    code, _, err = call("chat", *args, stdin="hello\n")
    assert code == 1 and "/set max_tokens allows more" in err


def test_several_answers_and_the_best_of_them(call: Run, model: Path) -> None:
    one = run_json(call, model)
    several = run_json(call, model, "--n-completions", "3")["answers"]
    assert len(several) == 3 and several[0]["text"] == one["text"]
    assert len({answer["seed"] for answer in several}) == 3
    assert all("logprobs" not in answer for answer in several)
    args = "--n-completions", "2", "--best-of", "3", "--logprobs", "0", "-np", "2"
    best = run_json(call, model, *args)["answers"]
    means = [sum(t["logprob"] for t in a["logprobs"]) / len(a["logprobs"]) for a in best]
    assert means == sorted(means, reverse=True)
    assert {a["text"] for a in best} <= {a["text"] for a in several}


def test_answers_that_are_not_streamed_show_that_they_are_generated(
    call: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    @contextmanager
    def working(label: str) -> Iterator[None]:
        yield
        shown.append(label)

    monkeypatch.setattr("satchel.cli.chat.respond.working", working)
    run_json(call, model)
    run_json(call, model, "--n-completions", "3")
    assert shown == ["generating the answer", "generating 3 answers"]
    assert call("run", "-m", str(model), "hello", "-c", "96", "-n", "4")[0] == 0 and len(shown) == 2


def test_several_answers_on_stdout(call: Run, model: Path) -> None:
    args = ("run", "-m", str(model), "hello", "-c", "96", "-n", "4", "-s", "3")
    answers = json.loads(call(*args, "--n-completions", "2", "--json")[1])["answers"]
    texts = [a["text"].rstrip() for a in answers]
    assert call(*args, "--n-completions", "2") == (0, f"{texts[0]}\n\n{texts[1]}\n", "")


@pytest.mark.parametrize("command", ["run", "chat"])
def test_the_report_as_lines(call: Run, model: Path, command: str) -> None:
    args = (command, "-m", str(model), "-c", "96", "-n", "4", "--report", "-p", "hello", "--temp", "0")
    code, out, err = call(*args)
    assert code == 0 and "sampling" not in out
    for name in ("sampling:", "in the cache:", "generated:", "bytes read:", "while writing:", "devices:"):
        assert name in err
    assert "of what the machine can" in err


def report(**changes: Any) -> UsageReport:
    usual: dict[str, Any] = dict.fromkeys(UsageReport.__dataclass_fields__, 0)
    usual |= {"sampling": Sampling(seed=4, top_k=7), "missed": "", "reason": "", "finish": "stop"}
    return UsageReport(**(usual | {"devices": {"cpu": 1.0}, "limit": None, "notes": ()} | changes))


def test_report_rows_say_what_happened_alone() -> None:
    assert drawn(report()) == "seed 4, top_k 7"
    rows = dict(report_rows(report()))
    assert not {"drafts", "cut", "restarted"} & set(rows)
    changes = {"drafted": 9, "accepted": 4, "cut_tokens": 5, "shifts": 1, "restarted": 2, "prompt_tokens": 40}
    rows = dict(report_rows(report(**changes, cached_tokens=32, missed=Miss.NONE.value)))
    assert rows["drafts"] == "4 of 9 tokens were right"
    assert rows["cut"] == "5 tokens; 0 messages, 1 shifts"
    assert rows["in the cache"] == "32 of 40 prompt tokens; the rest is its last block"
    assert rows["restarted"] == "0 times for others, 2 times after a crash"
    assert all(line.index(":") < 22 for line in lines(list(rows.items())))


def test_values_become_json() -> None:
    assert plain_values({1: (float("-inf"), [float("nan"), 2.5], None)}) == {
        "1": ["-inf", ["nan", 2.5], None]
    }
