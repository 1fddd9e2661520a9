"""Requests with different options in one batch: answers, grammars, thinking, logprobs, stop strings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chat_model
import numpy as np
import pytest
import tiny
import toy_vocab
from devices import needs
from hypothesis import given
from hypothesis import strategies as st

from satchel.errors import RequestError
from satchel.formats.chat import Style
from satchel.runtime.api.chat_reply import ChatReply
from satchel.runtime.api.generate_options import GenerateOptions
from satchel.runtime.api.model import Model
from satchel.runtime.api.overflow import Fitted
from satchel.runtime.api.reasoning import ReasoningBudget, closing_ids
from satchel.runtime.api.reply import Reply
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.engine.engine import Engine
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.service import Service
from satchel.runtime.grammar import (
    AnyJson,
    Choice,
    Gbnf,
    Regex,
    Spec,
    ToolCallGrammar,
    ToolSchema,
    compile_grammar,
)
from satchel.runtime.layers.arch import Cache
from satchel.runtime.sampling import GREEDY, Sampling
from satchel.runtime.speculative import Speculation, Speculator

STYLE = Style(family="hermes", thinks=True)
WORDS = chat_model.tokenizer()
compiled = needs("cpu")

# Stop strings


@given(
    st.lists(st.text("ab é", min_size=1, max_size=4), min_size=1, max_size=3),
    st.text("abc é", max_size=24),
    st.integers(1, 5),
)
def test_no_part_of_a_stop_string_that_comes_is_ever_shown(stops: list[str], text: str, most: int) -> None:
    """Each token is one byte, so characters are split wherever possible."""
    model: Any = chat_model.Scripted(WORDS, byte_ids(text))
    reply, shown = Reply(model, Fitted([5]), GenerateOptions(stop=stops).checked()), ""
    first = min(((text.find(s) + len(s), text.find(s)) for s in stops if s in text), default=None)
    wanted = text if first is None else text[: first[1]]
    for piece in reply:
        shown += piece
        assert wanted.startswith(shown)
    assert shown == reply.text == wanted
    assert reply.stats.finish == "stop"


def byte_ids(text: str) -> list[int]:
    """A token for each byte of the text."""
    single = {WORDS.token_bytes(i): i for i in range(WORDS.vocab_size) if len(WORDS.token_bytes(i)) == 1}
    return [single[bytes([b])] for b in text.encode()]


# Thinking and a grammar


SPACED = Regex("[ \n]*<?x")


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (Regex("  x"), "  x"),
        (Gbnf('root ::= "<" root ">" | "x"'), "<<x>>"),
        (Regex("<thinx"), "<thinx"),
        (Regex(" "), " "),
        (AnyJson(), '{"a": 1}'),
        (SPACED, " \n<x"),
    ],
)
@pytest.mark.parametrize("thought", ["", "<think>a < b</think>", "\n <think>\n</think>"])
def test_a_grammar_holds_what_may_begin_as_thinking_does(spec: Spec, text: str, thought: str) -> None:
    """Also after any number of tokens was rolled back and accepted again."""
    grammar = compile_grammar(WORDS, spec)
    ids = [*WORDS.encode(thought, special=True, bos=False), *byte_ids(text)]
    if thought.startswith("\n") and spec != SPACED:
        ids = ids[2:]  # the grammar allows no such space
    budget = ReasoningBudget(WORDS, STYLE, inner=grammar.constraint())
    masks: list[bytes] = []
    for token in ids:
        masks.append(mask(budget))
        assert np.frombuffer(masks[-1], np.uint32)[token // 32] >> token % 32 & 1
        budget.accept(token)
    for back in range(1, len(ids) + 1):
        budget.rollback(back)
        for token, before in zip(ids[-back:], masks[-back:], strict=True):
            assert mask(budget) == before
            budget.accept(token)
    assert grammar.check(text) == ""


def mask(budget: ReasoningBudget) -> bytes:
    words = np.zeros(-(-WORDS.vocab_size // 32), np.uint32)
    budget.fill(words)
    return words.tobytes()


TIME = ToolSchema("time", {"properties": {"a": {"type": "integer"}}, "required": ["a"]})
CALL = '<tool_call>\n{"name": "time", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize("kind", [toy_vocab.USER_DEFINED, toy_vocab.CONTROL])
@pytest.mark.parametrize("thought", ["", "<think>hm</think>"])
@pytest.mark.parametrize(
    ("spec", "text"),
    [(Regex(" x"), " x"), (Regex("\nx \n"), "\nx \n"), (ToolCallGrammar([TIME], "hermes"), CALL)],
)
def test_all_that_follows_the_thinking_is_judged(kind: int, thought: str, spec: Spec, text: str) -> None:
    """Spaces around the content and calls belong to the constrained text."""
    words = chat_model.tokenizer(kind)

    def reply(said: str) -> ChatReply:
        model: Any = chat_model.Scripted(words, words.encode(thought + said, special=True, bos=False))
        return ChatReply(model, Fitted([5]), GenerateOptions(grammar=spec).checked(), STYLE, tools=[TOOL])

    whole = reply(text)
    whole.read()
    assert whole.stats.reason == "" and whole.reasoning == ("hm" if thought else "")
    with pytest.raises(RequestError, match="does not satisfy its grammar"):
        reply(text + "y").read()


TOOL = {"type": "function", "function": {"name": "time", "parameters": dict(TIME.parameters)}}


@compiled
def test_a_grammar_holds_what_follows_a_budget_of_thinking(tmp_path: Path) -> None:
    """In one batch, each as it is alone."""
    asked = [{"role": "user", "content": "hello"}]
    opened = [*asked, {"role": "assistant", "content": "", "reasoning_content": "h"}]
    with Model.load(chat_model.write_chat_model(tmp_path / "tiny.gguf"), slots=3) as model:

        def ask(messages: Any, seed: int, budget: int) -> ChatReply:
            sampling = Sampling(temperature=1.5, top_k=0, seed=seed)
            return model.chat(
                messages, grammar=Regex("[ab]{6}"), reasoning=budget, sampling=sampling, max_tokens=60
            )

        cases = [(opened, 1, 5), (opened, 2, 9), (asked, 3, 4), (asked, 5, 0)]
        alone = [ask(*case).read() for case in cases]
        replies = [ask(*case) for case in cases]
        for reply in replies:
            reply.start()
        assert [reply.read() for reply in replies] == alone
        closing = closing_ids(model.tokenizer, model.style)
        for reply, (_, _, budget) in zip(replies, cases, strict=True):
            assert reply.stats.finish == "stop" and reply.stats.reason == ""
            assert len(reply.content) == 6 and set(reply.content) <= set("ab")
            if not budget:
                assert reply.text == reply.content
            else:
                at = budget + reply.text.startswith("<think>")  # one opens its thinking itself
                assert tuple(reply.ids[at : at + len(closing)]) == closing
                assert not set(reply.reasoning) <= set("ab"), "the thinking is free"


# Several answers to one prompt


@pytest.fixture(scope="module")
def model(bundled_model: Path) -> Iterator[Model]:
    with Model.load(bundled_model, context=512, slots=4) as loaded:
        yield loaded


PROMPT = "Here is a long list of things that one may find in a garden: trees, flowers, birds, stones, a " * 4


def test_the_best_of_several_answers_are_given_and_the_prompt_is_read_once(model: Model) -> None:
    drawn = Sampling(temperature=1.3, seed=11)
    made = model.answers(PROMPT, 4, max_tokens=12, sampling=drawn, logprobs=0, ignore_eos=True)
    assert len({reply.text for reply in made}) == 4
    prompt = made[0].stats.prompt
    assert made[0].stats.cached == 0
    for reply in made[1:]:
        assert prompt - 32 <= reply.stats.cached < prompt
    means = [np.mean([p.logprob for p in reply.logprobs]) for reply in made]
    best = model.answers(PROMPT, 2, best_of=4, max_tokens=12, sampling=drawn, ignore_eos=True)
    ranked = np.argsort([-m for m in means], kind="stable")[:2]
    assert [reply.text for reply in best] == [made[i].text for i in ranked]
    assert best[0].mean_logprob >= best[1].mean_logprob == pytest.approx(means[ranked[1]])
    first = model.generate(PROMPT, max_tokens=12, sampling=drawn, ignore_eos=True)
    assert first.read() == made[0].text, "the first has the seed that was given"


def test_answers_are_held_to_a_grammar_each_for_itself(model: Model) -> None:
    drawn = Sampling(temperature=2.0, top_k=0, seed=3)
    for best_of in (None, 5):
        found = model.answers("A number:", 3, best_of=best_of, grammar=Regex("[0-9]{4}"), sampling=drawn)
        assert len(found) == 3
        for reply in found:
            assert len(reply.text) == 4 and reply.text.isdigit() and reply.stats.finish == "stop"
        assert len({reply.text for reply in found}) > 1
    grammar = compile_grammar(model.tokenizer, Choice(["yes", "no"]))
    with pytest.raises(RequestError, match="a constraint goes with one answer"):
        model.answers("Well?", 2, constraint=grammar.constraint())
    (only,) = model.answers("Well?", 1, constraint=grammar.constraint())
    assert only.text in ("yes", "no")


# One batch of everything


def requests(count: int = 8) -> list[GenerateRequest]:
    """Plain ones, held ones, reporting ones; fresh constraints each time."""
    grammars = [compile_grammar(WORDS, spec) for spec in (AnyJson(), Regex("[a-f ]{30}"), Gbnf(NESTED))]
    found = []
    for i in range(count):
        ids = [1 + i, *[7, 8, 9, 10] * (3 + i)]
        sampling = (GREEDY, Sampling(temperature=1.4, top_k=0, seed=i))[i % 2]
        held = grammars[i % 3].constraint() if i % 4 in (1, 2) else None
        logprobs = 2 if i % 4 >= 2 else -1
        ends = frozenset(WORDS.eog)
        found.append(GenerateRequest(ids, 30, sampling, ends, constraint=held, logprobs=logprobs))
    return found


NESTED = 'root ::= "(" (root | [xyz]+)* ")"'


def run(blocks: int, together: bool) -> tuple[list[object], int, int]:
    """The result of each, the number of preemptions, and drafts."""
    cache = Cache(context=96, slots=4, block=16, blocks=blocks)
    device = find_backend("cpu").open(threads=2)
    engine: Engine = tiny.engine("llama", tiny.weights("llama", "q8_0"), cache, device)
    service = Service(engine, speculator=Speculator(Speculation(lookup=True)))
    handles, found = [], []
    for request in requests():
        handles.append(service.submit(request))
        if not together:
            list(handles[-1])
    for handle in handles:
        list(handle)
        found.append((handle.seq.ids, handle.finish, handle.logprobs))
    service.close()
    engine.pages.check()
    engine.close()
    return found, sum(t.seq.preempted for t in handles), sum(t.seq.used.drafted for t in handles)


@compiled
def test_a_batch_of_everything_gives_each_what_it_gets_alone() -> None:
    """Also where constrained requests are preempted and resumed."""
    alone, _, drafted = run(0, False)
    assert drafted > 0
    assert run(0, True)[0] == alone
    found, preempted, _ = run(8, True)
    assert preempted > 0 and found == alone
    held = [r.constraint is not None for r in requests()]
    assert any(len(ids) > 30 for (ids, _, _), h in zip(alone, held, strict=True) if h)  # type: ignore[misc]
