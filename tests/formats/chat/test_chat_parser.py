"""Streaming: however an answer is cut, the message is the same, nothing is lost, and no partial marker is
shown.
"""

import json
import random
import re
from itertools import pairwise

import pytest
from chat_cases import CASES, CITY, TOOLS, Case, hermes, identity
from hypothesis import given, settings
from hypothesis import strategies as st

from satchel.formats.chat import CallArguments, CallBegin, ChatParser, Collected, Content, Event, Style
from satchel.formats.chat.family import families
from satchel.formats.chat.walker import Walker

NAMES = sorted(families())


def parse(family: str, pieces: list[str], **options: object) -> list[Event]:
    parser = ChatParser(Style(family=family), tools=TOOLS, ids=lambda: "id", **options)  # type: ignore[arg-type]
    return [e for piece in pieces for e in parser.feed(piece)] + parser.finish()


def cut(text: str, places: list[int]) -> list[str]:
    return [text[a:b] for a, b in pairwise([0, *sorted(places), len(text)])]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.family}-{case.text[:30]}")
def test_what_a_family_writes_is_read(case: Case) -> None:
    found = Collected().add_all(parse(case.family, [case.text], opening=case.opening))
    assert identity(found) == (case.content, case.reasoning, case.calls, case.notes)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.family}-{case.text[:30]}")
def test_any_cut_gives_the_same(case: Case) -> None:
    draw, text = random.Random(case.text), case.text
    whole = Collected().add_all(parse(case.family, [text], opening=case.opening))
    cuts = [list(range(len(text)))] + [[i] for i in range(0, len(text), 3)]
    cuts += [draw.choices(range(len(text) + 1), k=6) for _ in range(8)]
    for n, places in enumerate(cuts):
        options = {"opening": case.opening, "hold": n % 2 == 0}
        found = Collected().add_all(parse(case.family, cut(text, places), **options))
        assert found == whole, places


FRAGMENTS = sorted(
    {m for f in families().values() for m in f.markers}
    | {
        "<think>",
        "</think>",
        " ",
        "\n",
        "{",
        "}",
        "[",
        "]",
        '"',
        "\\",
        ":",
        ",",
        "name",
        "arguments",
        "weather",
    }
    | {
        '{"name": "weather", "arguments": ',
        CITY,
        "time",
        "(",
        ")",
        "```json",
        "a",
        "ß",
        "1",
        "null",
        "</",
        "<",
    }
    | {"<parameter=", ">", "</function>", "to=functions.time ", "final", "analysis", ";", '<invoke name="'}
)


@pytest.mark.parametrize("family", ["", *NAMES])
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_hostile_answers_are_read_the_same_however_cut(family: str, data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(FRAGMENTS), max_size=25)))
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=12))
    whole = parse(family, [text], trim=False)
    assert Collected().add_all(whole) == Collected().add_all(parse(family, cut(text, places), trim=False))
    trimmed = Collected().add_all(parse(family, [text]))
    assert trimmed == Collected().add_all(parse(family, cut(text, places)))
    for call in trimmed.tool_calls:
        assert isinstance(json.loads(call.arguments), dict) and call.name


@pytest.mark.parametrize("family", ["", "hermes", "mistral", "deepseek", "listed", "qwen_xml"])
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_nothing_but_markers_is_lost(family: str, data: st.DataObject) -> None:
    """Every word of an answer appears in thoughts, text or calls."""
    words = [f"w{i}" for i in range(20)]
    parts = st.sampled_from(
        [*families()[family].markers, "<think>", "</think>", "{", "}", " "] if family else [" "]
    )
    text = "".join(word + data.draw(parts) for word in words)
    found = Collected().add_all(parse(family, [text]))
    out = found.reasoning + found.content + "".join(c.name + c.arguments for c in found.tool_calls)
    assert re.findall(r"w\d+", out) == words


def test_a_header_that_does_not_end_is_text() -> None:
    header = 40 * "on and on "
    found = Collected().add_all(parse("solar", [f"<|begin|>{header}<|content|>well"]))
    assert found.content == f"<|begin|>{header}well"


def test_no_half_marker_is_shown() -> None:
    text = f"a <tool{hermes('time', '{}')}"
    parser, shown = ChatParser(Style(family="hermes"), tools=TOOLS), ""
    for char in text:
        shown += "".join(e.text for e in parser.feed(char) if isinstance(e, Content))
        assert shown in ("", "a", "a <tool")


def test_arguments_stream_while_they_come() -> None:
    parser = ChatParser(Style(family="hermes"), tools=TOOLS)
    assert [type(e) for e in parser.feed('<tool_call>{"name": "weather", "arguments": ')] == [CallBegin]
    assert parser.feed('{"city"') == [CallArguments(0, '{"city"')]
    assert parser.feed(': "Z') == [CallArguments(0, ': "Z')]


def test_a_marker_that_is_a_token_counts_only_as_that_token() -> None:
    style, token = Style(family="hermes"), ("<think>", "</think>", "<tool_call>", "</tool_call>")
    parser = ChatParser(style, tools=TOOLS, tokens=token)
    events = parser.feed("<think>no</think> " + hermes("time", "{}")) + parser.finish()
    assert Collected().add_all(events).content == "<think>no</think> " + hermes("time", "{}")
    parser = ChatParser(style, tools=TOOLS, tokens=token)
    events = parser.feed("<think>", mark=True) + parser.feed("</think>") + parser.feed("</think>", mark=True)
    events += parser.feed("ok") + parser.feed("<tool_call>", mark=True)
    events += parser.feed('{"name": "time", "arguments": {"a": "</tool_call>"}}')
    events += parser.feed("</tool_call>", mark=True) + parser.finish()
    found = Collected().add_all(events)
    assert identity(found) == ("ok", "</think>", (("time", '{"a": "</tool_call>"}'),), 0)


def test_without_tools_calls_are_text() -> None:
    parser = ChatParser(Style(family="hermes"))
    found = Collected().add_all(parser.feed(hermes("time", "{}")) + parser.finish())
    assert found.content == hermes("time", "{}") and not found.tool_calls


@pytest.mark.parametrize("family", NAMES)
def test_h10_long_hostile_answers_take_linear_time(family: str) -> None:
    """A hundred thousand brackets, markers or quotes are read in one pass, and returned."""
    f = families()[family]
    for part in ("(", "[", "{", '{"a":', '"', "\\", *f.begins):
        text = (f.begins[0] if f.begins else "") + part * 5_000
        found = Collected().add_all(parse(family, [text]))
        told = len(found.content) + len(found.reasoning) + 100
        assert told >= len(text) or family in ("harmony", "gigachat")  # whose borders are never shown


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12,
), st.integers(1, 7), st.booleans(), st.text(max_size=3))  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_walker_ends_where_the_value_does(value: object, step: int, ascii: bool, more: str) -> None:
    text = json.dumps(value, ensure_ascii=ascii, indent=step if ascii else None)
    walker, taken = Walker(), 0
    whole = text + " " + more
    for i in range(0, len(whole), step):
        piece = whole[i : i + step]
        end = walker.feed(piece)
        taken += end
        if end < len(piece) or walker.done:
            break
    assert walker.done and taken == len(text)


@given(st.text(alphabet='{}[]",:\\0123456789.eE+-truefalsn u\t\n\x01', max_size=20))
@settings(max_examples=200, deadline=None)
def test_walker_takes_what_json_takes(text: str) -> None:
    walker = Walker()
    end = walker.feed(text)
    walker.close()
    good = not walker.error and not text[end:].strip(" \t\r\n")
    try:
        json.loads(text, parse_constant=lambda name: 1 / 0)
    except (ValueError, ZeroDivisionError):
        assert not good
    else:
        assert good
