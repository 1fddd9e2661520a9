"""The worker's parts that need no process: which request is blamed for a crash, and the content of
messages.
"""

from __future__ import annotations

import io
import json
import random
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from waiting import happened, joined, until

from satchel.errors import DeviceError, ModelError, RequestError
from satchel.formats.chat import Style
from satchel.runtime.api.model import Model
from satchel.runtime.api.options import Options
from satchel.runtime.api.refusals import PromptTooLong, QueueFull
from satchel.runtime.engine.cancel_scope import CancelScope, current_scope
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.stats import Histogram, Usage
from satchel.runtime.grammar import (
    AnyJson,
    Choice,
    Gbnf,
    JsonSchema,
    Lark,
    Regex,
    ToolCallGrammar,
    ToolSchema,
)
from satchel.runtime.grammar.spec import Spec
from satchel.runtime.kv import Miss
from satchel.runtime.layers.arch import Cache
from satchel.runtime.sampling import Sampling
from satchel.runtime.worker.blame import Blame
from satchel.runtime.worker.child import Worker
from satchel.runtime.worker.outlet import PART, Outlet
from satchel.runtime.worker.service import WorkerService
from satchel.runtime.worker.wire import (
    LENGTHS,
    Arrays,
    decode,
    decode_error,
    encode,
    encode_error,
    read_message,
    write_message,
)


def test_who_dies_alone_after_others_is_guilty() -> None:
    blame = Blame()
    assert blame.died([3, 1, 2]) is None and blame.alone == 1
    blame.survived(1)
    assert blame.alone == 2 and blame.died([2]) == 2
    assert blame.alone == 3 and blame.deaths[2] == 0
    blame.survived(3)
    assert blame.alone is None


def test_one_death_of_one_request_may_have_come_from_outside() -> None:
    blame = Blame()
    assert blame.died([7]) is None and blame.alone == 7
    blame.survived(7)
    assert blame.died([]) is None and blame.alone is None
    assert blame.died([7]) == 7


@pytest.mark.parametrize("late", [1, 2, 5, 40, 300])
def test_whoever_kills_is_found_however_late_it_does(late: int) -> None:
    """late: tokens of the guilty request after each restart before it kills."""
    for seed in range(20):
        rng, blame = random.Random(seed), Blame()
        live, guilty, deaths = list(range(1, 7)), rng.randrange(1, 7), 0
        while guilty in live:
            deaths += 1
            if blame.alone is None:
                found = blame.died(rng.sample(live, len(live)))  # all together, until it kills
            elif blame.alone == guilty and blame.trial(guilty) > late:
                found = blame.died([guilty])
            else:
                blame.survived(blame.alone)
                deaths -= 1
                continue
            if found is not None:
                live.remove(found)
        assert guilty not in live and len(live) == 5, "nobody else is refused"
        assert deaths <= 6


VALUES = [
    GenerateRequest((1, 2), 5, Sampling(seed=3), frozenset({7, 8}), deadline=1.5, given=(4,)),
    Options(context=3, worker="process"),
    Cache(context=64, slots=2),
    Usage(devices={"cpu": 0.5}),
    Histogram((1.0, 2.0)).value(),
    [None, True, -1, 1.5, float("inf"), "ü\ud800", (1, (2,)), frozenset(), {"$": 1, 2: "x"}, Miss.SALT],
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_values_come_out_as_they_went_in(value: object) -> None:
    pipe = io.BytesIO()
    write_message(pipe, {"value": encode(value)}, b"bytes")
    write_message(pipe, {"after": 1})
    pipe.seek(0)
    first, second = read_message(pipe), read_message(pipe)
    assert first is not None and second == ({"after": 1}, b"") and read_message(pipe) is None
    found = decode(first[0]["value"])
    assert found == value and type(found) is type(value) and first[1] == b"bytes"


def test_numbers_of_numpy_are_numbers() -> None:
    assert encode([np.int32(3), np.float32(0.5)]) == [3, 0.5]


@pytest.mark.parametrize("value", [object(), lambda: 0, {1: object()}, b"x", Sampling])
def test_what_cannot_be_sent_is_refused(value: object) -> None:
    with pytest.raises(RequestError, match="cannot be sent to a worker process"):
        encode(value)


@pytest.mark.parametrize(
    "value", [{"$": "os.system", "v": ["x"]}, {"$": "GenerateRequest", "v": 3}, {}, {"v": 1}]
)
def test_unknown_kinds_are_refused(value: object) -> None:
    with pytest.raises(DeviceError, match="not known"):
        decode(value)


@pytest.mark.parametrize(
    "value",
    [
        {"$": "Sampling", "v": {"no_such_field": 1}},
        {"$": "Sampling", "v": {"top_p": "x"}},
        {"$": "Sampling", "v": {"top_p": 5}},
        {"$": ["list"], "v": 1},
        {"$": "array", "v": []},
        {"$": "array", "v": ["<f4", [2, 3], 0]},
        {"$": "array", "v": ["<f4", [-1, -2], 0]},
        {"$": "array", "v": ["<f4", [1], -4]},
        {"$": "array", "v": ["<f4", [1 << 62, 8], 0]},
        {"$": "json", "v": "{"},
        {"$": "Miss", "v": "none"},
        {"$": "dict", "v": [1]},
        {"$": "frozenset", "v": [[1]]},
    ],
)
def test_a_value_that_is_none_is_one_error(value: object) -> None:
    with pytest.raises(DeviceError, match="worker process sent a value"):
        decode([value], np.zeros(8, np.uint8))


@pytest.mark.parametrize("head", [b"{", b"\xff", b"[1]", b"3", b"[" * 100_000])
def test_a_message_that_is_none_is_one_error(head: bytes) -> None:
    with pytest.raises(DeviceError, match="worker process sent"):
        read_message(io.BytesIO(LENGTHS.pack(len(head), 0) + head))


@pytest.mark.parametrize("value", [None, [], ["ValueError", "x", 3], [[], "x", {}], 7, "abc"])
def test_an_error_that_is_none_is_one_error(value: object) -> None:
    assert isinstance(decode_error(value), DeviceError)


def test_cut_messages_are_an_end_and_huge_ones_an_error() -> None:
    pipe = io.BytesIO()
    write_message(pipe, {"a": 1}, b"xyz")
    whole = pipe.getvalue()
    assert all(read_message(io.BytesIO(whole[:n])) is None for n in range(len(whole)))
    with pytest.raises(DeviceError, match="bytes"):
        read_message(io.BytesIO(LENGTHS.pack(1 << 60, 0)))


ERRORS = [
    DeviceError("a"),
    ModelError("b"),
    RequestError("c"),
    PromptTooLong(9, 5, "too long"),
    QueueFull(7),
    TypeError("an int is wanted"),
    OSError("no room"),
]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_errors_keep_their_kind_and_their_numbers(error: Exception) -> None:
    found = decode_error(json.loads(json.dumps(encode_error(error))))
    assert type(found) is type(error) and str(found) == str(error) and vars(found) == vars(error)


def test_errors_of_other_kinds_come_as_the_nearest_that_is_known() -> None:
    class Odd(ModelError):
        pass

    found = decode_error(encode_error(Odd("text")))
    assert type(found) is ModelError and str(found) == "text"
    assert type(decode_error(encode_error(KeyError("k")))) is DeviceError


def deep(levels: int) -> dict[str, Any]:
    """A schema so many levels deep."""
    found: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        found = {"type": "array", "items": found}
    return found


GRAMMARS = [
    JsonSchema({"b": 1, "a": [True, None]}, spaces=False),
    JsonSchema(deep(200)),
    JsonSchema(True),
    AnyJson(anything=True),
    Choice(("a", "b")),
    Gbnf('root ::= "a"'),
    Lark('start: "a"'),
    Regex("[a-z]"),
    ToolCallGrammar([ToolSchema("f", {"type": "object"}), ToolSchema("g")], "hermes", parallel=True),
]


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: type(grammar).__name__)
def test_structured_output_survives_the_wire(grammar: Spec) -> None:
    request = GenerateRequest((1,), 2, grammar=grammar, style=Style("x", "<t>", "</t>"), opening="content")
    assert decode(json.loads(json.dumps(encode(request)))) == request


def test_arrays_go_beside_their_values() -> None:
    rng, arrays = np.random.default_rng(1), Arrays()
    value = {"a": [rng.random((2, 3), np.float32), np.empty((0, 4), np.float64)], "b": np.arange(5)}
    told = json.loads(json.dumps(encode(value, arrays)))
    data = np.concatenate([np.frombuffer(p, np.uint8) for p in arrays.parts])
    found = decode(told, data)
    for wanted, got in (
        (value["a"][0], found["a"][0]),
        (value["a"][1], found["a"][1]),
        (value["b"], found["b"]),
    ):
        assert got.dtype == wanted.dtype and np.array_equal(got, wanted)
    assert decode(encode(np.arange(3))) == [0, 1, 2], "where nothing goes beside it"
    with pytest.raises(RequestError, match="complex128"):
        encode(np.zeros(1, complex), Arrays())


def test_a_short_message_goes_behind_the_part_at_hand() -> None:
    at_hand, go = threading.Event(), threading.Event()

    class Held(io.BytesIO):
        def flush(self) -> None:
            at_hand.set()
            happened(go, "leave to go on")

    file = Held()
    outlet, long = Outlet(file), memoryview(bytes(5 * PART))
    sender = threading.Thread(target=outlet.send_parts, args=({"part": 1}, [long]))
    sender.start()
    happened(at_hand, "the first part is at hand")
    other = threading.Thread(target=outlet.send, args=({"short": 1},))
    other.start()
    until(lambda: outlet._waiting, "the short message waits")
    go.set()
    for thread in (sender, other):
        joined(thread, "what was sent")
    file.seek(0)
    came = list(iter(lambda: read_message(file), None))
    assert [next(iter(message)) for message, _ in came] == ["part", "short", *["part"] * 4]
    assert sum(len(data) for _, data in came) == len(long)


def test_a_call_brings_its_client_to_the_worker(tmp_path: Path) -> None:
    """From the scope of the caller's thread to that of the thread that runs the method there."""
    service, scope = WorkerService(tmp_path / "m.gguf", Options()), CancelScope(client="key", weight=2.0)

    def asks() -> None:
        with suppress(RequestError):
            scope.run(lambda: service.ask("embed", "a text"))

    asker = threading.Thread(target=asks)
    asker.start()
    until(lambda: bool(service._calls), "the call waits for a process")
    (call,), source = service._calls.values(), io.BytesIO()
    scope.cancel()
    asker.join(60)
    write_message(source, {"ask": 1, **call.message})
    write_message(source, {"close": 1})
    source.seek(0)
    seen: list[tuple[str, str, float]] = []

    class Embeds:
        def embed(self, text: str) -> None:
            seen.append((text, current_scope().client, current_scope().weight))

    Worker(io.BytesIO()).serve(cast(Model, Embeds()), source)
    until(lambda: bool(seen), "the worker runs the method")
    assert seen == [("a text", "key", 2.0)]
