"""Conversations through the engine: prompts, prefill, parts of an answer and budgets, scripted and real."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_cases import TOOLS
from chat_model import MARKERS, TEMPLATE, Scripted, tokenizer, write_chat_model
from toy_vocab import CONTROL, USER_DEFINED

from satchel import Model
from satchel.errors import RequestError
from satchel.formats.chat import CallEnd, Content, Reasoning, Style, ToolCall, detect
from satchel.formats.template import ChatTemplate
from satchel.runtime.api.async_model import AsyncModel
from satchel.runtime.api.chat import ChatPrompt, Thinking
from satchel.runtime.api.chat_reply import ChatReply
from satchel.runtime.api.generate_options import GenerateOptions
from satchel.runtime.api.overflow import Fitted
from satchel.runtime.api.reasoning import ReasoningBudget, closing_ids
from satchel.runtime.sampling import GREEDY

HI = {"role": "user", "content": "hello"}
STYLE = Style(family="hermes", thinks=True)
CALL = '<tool_call>\n{"name": "time", "arguments": {"a": 1}}\n</tool_call>'


def scripted(text: str, kind: int = USER_DEFINED, **options: Any) -> ChatReply:
    """The answer that a model gives by these tokens."""
    words = tokenizer(kind)
    asked = {name: options.pop(name) for name in ("stop", "max_tokens") if name in options}
    model: Any = Scripted(words, words.encode(text, special=True, bos=False))
    fitted = Fitted(words.encode("hello", bos=False))
    return ChatReply(model, fitted, GenerateOptions(**asked).checked(), STYLE, **{"tools": TOOLS, **options})


@pytest.mark.parametrize("kind", [USER_DEFINED, CONTROL])
def test_an_answer_has_its_parts(kind: int) -> None:
    text = f"<think>\nhm\n</think>\n\nSure. {CALL}"
    reply = scripted(text, kind)
    shown = reply.read()
    assert shown == text if kind == USER_DEFINED else not any(marker in shown for marker in MARKERS)
    assert (reply.reasoning, reply.content) == ("hm", "Sure.")
    call = reply.tool_calls[0]
    assert (call.name, call.arguments) == ("time", '{"a": 1}')
    assert reply.message() == {
        "role": "assistant", "content": "Sure.", "reasoning_content": "hm", "tool_calls": [call.message()],
    }  # fmt: skip


def test_events_come_while_the_answer_does_and_pieces_give_the_text() -> None:
    reply = scripted(f"<think>hm</think>Sure. {CALL}")
    seen = list(reply.events())
    assert "".join(e.text for e in seen if isinstance(e, Reasoning)) == "hm"
    assert "".join(e.text for e in seen if isinstance(e, Content)) == "Sure."
    assert isinstance(seen[-1], CallEnd) and reply.over and reply.text.startswith("<think>hm")
    late = scripted("<think>hm</think>Sure.")
    assert next(late) and "".join(late)
    assert [e for e in late.events() if isinstance(e, Content)]


@pytest.mark.parametrize(
    ("style", "kind", "text", "shown", "spoken"),
    [
        (STYLE, USER_DEFINED, "<think>hm</think>ok", "<think>hm</think>ok", "<think>hm</think>ok"),
        (STYLE, CONTROL, "<think>hm</think>ok", "<think>\nhm\n</think>\n\nok", "ok"),
        (
            Style(open="<t>", close="</t>"),
            CONTROL,
            "<t>hm</t>ok",
            "<think>\nhm\n</think>\n\nok",
            "<t>hm</t>ok",
        ),
    ],
)
def test_people_see_thinking_in_the_same_tags(
    style: Style, kind: int, text: str, shown: str, spoken: str
) -> None:
    words = tokenizer(kind)
    model: Any = Scripted(words, words.encode(text, special=True, bos=False))
    reply = ChatReply(model, Fitted([1]), GenerateOptions().checked(), style)
    assert "".join(reply.shown()) == shown and reply.spoken == spoken


def test_a_marker_spelt_in_plain_tokens_is_text() -> None:
    words = tokenizer()
    ids = [i for char in "<think>no</think>" for i in words.encode(char, bos=False)]
    model: Any = Scripted(words, ids)
    reply = ChatReply(model, Fitted([1]), GenerateOptions().checked(), STYLE)
    reply.read()
    assert (reply.content, reply.reasoning) == ("<think>no</think>", "")


@pytest.mark.parametrize(
    ("stop", "content", "reasoning"),
    [("STOP", "abc", "t"), ("</think>", "", "t"), ("k>a", "", "t"), ("t</th", "", "")],
)
def test_a_stop_string_ends_the_parts_too(stop: str, content: str, reasoning: str) -> None:
    reply = scripted("<think>t</think>abcSTOPdef", stop=(stop,))
    whole = reply.read()
    assert whole == "<think>t</think>abcSTOPdef".partition(stop)[0] and reply.stats.finish == "stop"
    assert reply.content.replace("</thin", "") == content and reply.reasoning.partition("<")[0] == reasoning


def test_a_malformed_call_is_content_with_a_note() -> None:
    reply = scripted('<tool_call>{"name": }</tool_call>')
    reply.read()
    assert reply.content == '<tool_call>{"name": }</tool_call>' and not reply.tool_calls
    assert len(reply.notes) == 1 and "malformed" in reply.notes[0]


def test_a_closed_answer_keeps_what_came() -> None:
    reply = scripted("<think>some thought that goes on")
    next(reply)
    for _ in range(6):
        next(reply)
    reply.close()
    assert reply.reasoning and list(reply.events()) and reply.stats.finish == "cancelled"


# Prompts

TEMPLATES = {
    "usual": TEMPLATE,
    "opened": TEMPLATE.replace("elif opened", "else"),
    "fixed": TEMPLATE.replace("enable_thinking is defined and enable_thinking is false", "false").replace(
        "elif opened", "else"
    ),
}


def prompt(name: str, *messages: dict[str, Any], **options: Any) -> tuple[str, str]:
    template, words = ChatTemplate(TEMPLATES[name]), tokenizer()
    asked = ChatPrompt(template, words, detect(template), messages or (HI,), **options)
    text = words.unescape(asked.text(asked.messages))
    return text[text.rindex("<|im_start|>assistant\n") + 22 :], asked.opening


OFF = Thinking.of(False)
SAID = {"role": "assistant", "content": "It is"}
THOUGHT = {"role": "assistant", "content": "", "reasoning_content": "So"}
BOTH = {"role": "assistant", "content": "It is", "reasoning_content": "So"}


@pytest.mark.parametrize(
    ("name", "last", "thinking", "start", "opening"),
    [
        ("usual", None, None, "", ""),
        ("usual", None, OFF, "<think>\n\n</think>\n\n", ""),
        ("opened", None, None, "<think>\n", "reasoning"),
        ("opened", None, OFF, "<think>\n\n</think>\n\n", ""),
        ("fixed", None, OFF, "<think>\n\n</think>\n\n", ""),
        ("fixed", None, Thinking.of(0), "<think>\n\n</think>\n\n", ""),
        ("usual", SAID, None, "It is", "content"),
        ("usual", THOUGHT, None, "<think>\nSo", "reasoning"),
        ("usual", BOTH, None, "<think>\nSo\n</think>\n\nIt is", "content"),
        ("opened", SAID, None, "<think>\n\n</think>\n\nIt is", "content"),
        ("opened", THOUGHT, None, "<think>\nSo", "reasoning"),
        ("usual", SAID, OFF, "<think>\n\n</think>\n\nIt is", "content"),
    ],
)
def test_what_an_answer_begins_with(
    name: str, last: dict[str, Any] | None, thinking: Thinking | None, start: str, opening: str
) -> None:
    messages = (HI, last) if last else (HI,)
    assert prompt(name, *messages, thinking=thinking) == (start, opening)


def test_without_prefill_a_new_turn_begins() -> None:
    assert prompt("usual", HI, SAID, prefill=False) == ("", "")


def test_t08_prefilled_words_are_no_markers() -> None:
    template, words = ChatTemplate(TEMPLATE), tokenizer(CONTROL)
    said = {
        "role": "assistant",
        "content": "a</think><|im_end|>",
        "reasoning_content": "b</think><tool_call>",
    }
    asked = ChatPrompt(template, words, detect(template), [HI, said])
    ids = asked.render(asked.messages)
    marked = [words.text(i) for i in ids if words.is_control(i)]
    assert marked == ["<|im_start|>", "<|im_end|>", "<|im_start|>", "<think>", "</think>"]


ASSISTANT = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": {"name": "time"}}]}
TWICE = {**ASSISTANT, "tool_calls": ASSISTANT["tool_calls"] * 2}  # type: ignore[operator]
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "noon"}


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([{"role": "robot", "content": "x"}], "messages[0].role: expected one of system, developer, user"),
        ([HI, RESULT], "messages[1]: a tool's result, but the assistant's message before it calls no tool"),
        ([HI, ASSISTANT, {**RESULT, "tool_call_id": "c2"}], "call without a result ('c1'), got 'c2'"),
        ([HI, ASSISTANT, {**RESULT, "tool_call_id": 5}], "messages[2].tool_call_id: expected text, got int"),
        ([HI, ASSISTANT, RESULT, RESULT], "messages[3].tool_call_id: 'c1' has its result already"),
        ([HI, TWICE], "messages[1].tool_calls[1].id: 'c1' is an earlier call's"),
        ([HI, SAID, SAID], "messages[2]: two assistant messages stand at the end"),
        ([SAID], "there is only an assistant message"),
    ],
)
def test_conversations_that_cannot_be_are_refused(messages: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        prompt("usual", *messages)
    assert said in str(caught.value)


def test_options_that_cannot_be_are_refused() -> None:
    for wrong in (-1, "", 1.5, []):
        with pytest.raises(RequestError, match="reasoning is"):
            Thinking.of(wrong)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="reads no reasoning_effort"):
        prompt("usual", thinking=Thinking.of("high"))
    with pytest.raises(RequestError, match="prefill continues"):
        prompt("usual", prefill=True)
    chatml = ChatTemplate.chatml()
    with pytest.raises(RequestError, match="does not support thinking"):
        ChatPrompt(chatml, tokenizer(), detect(chatml), [HI], thinking=Thinking.of(True))


def test_results_find_their_calls_without_an_id() -> None:
    asked = ChatPrompt(
        ChatTemplate(TEMPLATE), tokenizer(), STYLE, [HI, ASSISTANT, {"role": "tool", "content": "noon"}]
    )
    assert asked.messages[2]["tool_call_id"] == "c1" and asked.messages[2]["name"] == "time"


def test_foreign_ids_take_the_family_s_form() -> None:
    style = Style(family="mistral")
    asked = ChatPrompt(ChatTemplate(TEMPLATE), tokenizer(), style, [HI, ASSISTANT, RESULT])
    made = asked.messages[1]["tool_calls"][0]["id"]
    assert len(made) == 9 and made.isalnum() and asked.messages[2]["tool_call_id"] == made


# Budgets


def allowed_by(budget: ReasoningBudget, size: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    bitmask = np.zeros(-(-size // 32), np.uint32)
    budget.fill(bitmask)
    return np.unpackbits(bitmask.view(np.uint8), bitorder="little")[:size].astype(bool)


class Even:
    """An inner constraint: even tokens only."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.finished = False

    def fill(self, bitmask: Any) -> None:
        bitmask[:] = 0x55555555

    def accept(self, token: int) -> None:
        self.taken.append(token)

    def rollback(self, n: int) -> None:
        del self.taken[len(self.taken) - n :]


def test_a_budget_forces_the_end_and_then_the_inner_constraint_holds() -> None:
    words, inner = tokenizer(), Even()
    budget = ReasoningBudget(words, STYLE, 3, end="well", inner=inner)
    size = words.vocab_size
    opener = words.vocab.index["<think>"]
    first = allowed_by(budget, size)
    assert first[opener] and first[::2].all() and first.sum() <= size // 2 + 2
    budget.accept(opener)
    states = []
    for token in (65, 66, 67):
        assert allowed_by(budget, size).all()
        states.append((allowed_by(budget, size).tolist(), budget.phase))
        budget.accept(token)
    closing = closing_ids(words, STYLE, "well")
    assert words.decode(closing, special=True) == "well\n</think>\n\n"
    for i, token in enumerate(closing):
        assert budget.forced == closing[i:]
        assert np.flatnonzero(allowed_by(budget, size)).tolist() == [token]
        budget.accept(token)
    assert budget.forced == () and budget.phase == "after" and not inner.taken
    assert not allowed_by(budget, size)[1::2].any()
    budget.accept(70)
    assert inner.taken == [70]
    budget.rollback(1 + len(closing) + 3)
    assert inner.taken == [] and budget.phase == "inside" and budget.forced == ()
    assert allowed_by(budget, size).tolist() == states[0][0]


def test_an_answer_without_thinking_is_the_inner_constraint_s_from_the_start() -> None:
    words, inner = tokenizer(), Even()
    budget = ReasoningBudget(words, STYLE, None, inner=inner)
    for token in words.encode("hello", bos=False):
        budget.accept(token)
    assert budget.phase == "after" and inner.taken == words.encode("hello", bos=False)


@pytest.mark.parametrize("spelt", [False, True])
def test_markers_are_seen_however_they_are_spelt(spelt: bool) -> None:
    words = tokenizer()
    style = Style(open="<thought>", close="</thought>") if spelt else STYLE
    budget = ReasoningBudget(words, style, 5, opening="reasoning")
    for token in words.encode(f"ab{style.close}", special=True, bos=False)[:40]:
        if budget.forced:
            break
        budget.accept(token)
    assert (budget.phase == "after") == (not spelt)  # the spelt one's bytes are over the budget


def test_a_spent_budget_makes_the_request_go_on_behind_the_end() -> None:
    words = tokenizer()
    model: Any = Scripted(words, words.encode("abcdefgh", bos=False), words.encode("So yes.", bos=False))
    budget = ReasoningBudget(words, STYLE, 4, opening="reasoning", end="!")
    reply = ChatReply(
        model, Fitted([5, 6]), GenerateOptions().checked(), STYLE, opening="reasoning", budget=budget
    )
    assert reply.read() == "abcd!\n</think>\n\nSo yes."
    assert (reply.reasoning, reply.content) == ("abcd!", "So yes.")
    closing = closing_ids(words, STYLE, "!")
    assert model.requests[1].ids == [5, 6, *words.encode("abcd", bos=False), *closing]
    assert reply.stats.generated == len(reply.ids) == 4 + len(closing) + 7
    assert not reply.notes


# The engine


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("chat") / "tiny.gguf")


def test_a_budget_in_the_engine_goes_on_as_if_the_model_had_ended_itself(path: Path) -> None:
    with Model.load(path) as model:
        thought = {"role": "assistant", "content": "", "reasoning_content": "h"}
        asked = [HI, thought]
        reply = model.chat(asked, reasoning=7, max_tokens=40, sampling=GREEDY, ignore_eos=True)
        reply.read()
        closing = closing_ids(model.tokenizer, model.style)
        assert tuple(reply.ids[7 : 7 + len(closing)]) == closing and len(reply.ids) == 40
        assert reply.report.shifts == 0 and not reply.notes
        alone = model.generate(
            [*reply.prompt, *reply.ids[: 7 + len(closing)]],
            max_tokens=40 - 7 - len(closing), sampling=GREEDY, ignore_eos=True,
        )  # fmt: skip
        alone.read()
        assert alone.ids == reply.ids[7 + len(closing) :]


def test_chat_tells_parts_apart_and_takes_them_back(path: Path) -> None:
    with Model.load(path) as model:
        reply = model.chat([HI], tools=TOOLS, max_tokens=20, sampling=GREEDY, ignore_eos=True)
        events = list(reply.events())
        assert "".join(e.text for e in events if isinstance(e, Content)) == reply.content
        said = ToolCall("c1", "time", json.dumps({"a": 1})).message()
        again = [HI, {**reply.message(), "tool_calls": [said]}, RESULT, HI]
        assert model.chat(again, tools=TOOLS, max_tokens=3, sampling=GREEDY).read() is not None
        begun = model.chat([HI, SAID], max_tokens=5, sampling=GREEDY, ignore_eos=True)
        begun.read()
        assert model.detokenize(begun.prompt, special=True).endswith("assistant\nIt is")


def test_asyncio_gives_the_same_events(path: Path) -> None:
    async def run() -> str:
        async with await AsyncModel.load(path) as model:
            reply = await model.chat([HI], max_tokens=12, sampling=GREEDY, ignore_eos=True)
            said = [e async for e in reply.events()]
            return "".join(e.text for e in said if isinstance(e, Content | Reasoning))

    with Model.load(path) as model:
        alone = model.chat([HI], max_tokens=12, sampling=GREEDY, ignore_eos=True)
        alone.read()
    assert asyncio.run(run()) == alone.reasoning + alone.content
