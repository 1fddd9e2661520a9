"""Parts of Anthropic's and Ollama's APIs without a server: content blocks, streamed calls, durations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from chat_cases import CASES, TOOLS, Case

pytest.importorskip("fastapi")

from satchel.formats.chat import ChatParser, Event, Style
from satchel.server.anthropic import FLAVOUR as ANTHROPIC
from satchel.server.anthropic.shapes import Blocks
from satchel.server.fields import Body, kept
from satchel.server.flavour import flavour_of
from satchel.server.ollama import FLAVOUR as OLLAMA
from satchel.server.ollama.options import SOON, STAYS, keep_seconds
from satchel.server.ollama.shapes import DeltaReader, MessageDelta, stamp
from satchel.server.problem import KINDS, Problem

FAMILIES = ("hermes", "mistral", "deepseek", "llama3", "")


class Counted(Body):
    """A body that counts how often its kept properties are computed."""

    @kept
    def good(self) -> list[int]:
        made.append("good")
        return [1]

    @kept
    def bad(self) -> int:
        made.append("bad")
        raise Problem("invalid", "no")


made: list[str] = []


def test_what_is_kept_is_worked_out_once_an_error_too() -> None:
    made.clear()
    body = Counted.model_validate({"more": 1})
    body.prepare()
    assert sorted(made) == ["bad", "good"] and body.unknown == ["more"]
    assert body.good is body.good
    for _ in range(2):
        with pytest.raises(Problem, match="no"):
            _ = body.bad
    assert sorted(made) == ["bad", "good"]
    assert body.model_dump() == {"more": 1}


def events(case: Case, step: int) -> Iterator[list[Event]]:
    """The parser's events for the case's text, `step` characters at a time."""
    parser = ChatParser(Style(family=case.family), tools=TOOLS, opening=case.opening)
    for at in range(0, len(case.text), step):
        yield parser.feed(case.text[at : at + step])
    yield parser.finish()


@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize("case", [c for c in CASES if c.family in FAMILIES], ids=lambda c: c.text[:20])
def test_an_answer_comes_to_the_same_in_both_dialects(case: Case, step: int) -> None:
    blocks, reader, whole = Blocks(), DeltaReader(), MessageDelta()
    told: list[dict[str, Any]] = []
    for some in events(case, step):
        told += blocks.add(some)
        said = reader.read(some)
        whole.content, whole.thinking = whole.content + said.content, whole.thinking + said.thinking
        whole.calls += said.calls
    told += blocks.close()
    assert rebuilt(told) == blocks.content

    def texts(kind: str, field: str) -> str:
        return "".join(block[field] for block in blocks.content if block["type"] == kind)

    assert texts("text", "text") == whole.content == case.content
    assert texts("thinking", "thinking") == whole.thinking == case.reasoning
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in whole.calls]
    assert calls == [(b["name"], b["input"]) for b in blocks.content if b["type"] == "tool_use"]
    assert calls == [(name, json.loads(arguments)) for name, arguments in case.calls]


def rebuilt(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks as a client assembles them."""
    blocks: list[dict[str, Any]] = []
    inputs: dict[int, str] = {}
    for event in told:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append(dict(event["content_block"]))
            case "content_block_delta":
                delta, block = event["delta"], blocks[event["index"]]
                field = next(name for name in delta if name != "type")
                if field == "partial_json":
                    inputs[event["index"]] = inputs.get(event["index"], "") + delta[field]
                else:
                    block[field] += delta[field]
            case "content_block_stop":
                assert event["index"] == len(blocks) - 1
                if blocks[-1]["type"] == "tool_use":
                    blocks[-1]["input"] = json.loads(inputs.get(event["index"]) or "{}")
    return blocks


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (None, None), (0, SOON), ("0", SOON), ("0s", SOON), (-1, STAYS), ("-1", STAYS), ("-1s", STAYS),
        (30, 30.0), (1.5, 1.5), ("5m", 300.0), ("1h30m", 5400.0), ("250ms", 0.25),
        ("24h", 86400.0), (10**12, STAYS), (10**400, STAYS), (-(10**400), STAYS), (1e308, STAYS),
    ],
)  # fmt: skip
def test_durations(given: Any, seconds: float | None) -> None:
    assert keep_seconds(given) == (pytest.approx(seconds) if seconds else seconds)


@pytest.mark.parametrize("given", ["", "soon", "5", "5 m", "5x", "m", "1e3", "--1", "9" * 100])
def test_what_is_no_duration(given: str) -> None:
    if given == "5":
        assert keep_seconds(given) == 5.0
        return
    with pytest.raises(Problem) as error:
        keep_seconds(given)
    assert error.value.param == "keep_alive"


def test_times_are_what_clients_read() -> None:
    assert stamp(0.5) == "1970-01-01T00:00:00.500000000Z"
    assert len(stamp()) == len(stamp(0.5))


def test_each_kind_of_problem_has_its_type() -> None:
    for kind, status in KINDS.items():
        told, body = ANTHROPIC.error(Problem(kind, "m", retry_after=1), "req_1")
        assert told == (529 if kind == "busy" else status)
        assert (body["type"], body["error"]["message"], body["request_id"]) == ("error", "m", "req_1")
        assert ANTHROPIC.late(Problem(kind, "m")).startswith(b"event: error\ndata: {")
        assert OLLAMA.error(Problem(kind, "m"), "req_1") == (status, {"error": "m"})
        assert json.loads(OLLAMA.late(Problem(kind, "m"))) == {"error": "m"}


@pytest.mark.parametrize(
    ("path", "headers", "name"),
    [
        ("/v1/messages", (), "anthropic"),
        ("/v1/messages/count_tokens", (), "anthropic"),
        ("/v1/models", ("anthropic-version",), "anthropic"),
        ("/v1/models", (), "openai"),
        ("/api/chat", (), "ollama"),
        ("/apiary", (), "openai"),
        ("/v1/messagesx", (), "openai"),
    ],
)
def test_paths_and_headers_belong_to_dialects(path: str, headers: tuple[str, ...], name: str) -> None:
    assert flavour_of(path, headers).name == name
