"""Hostile chat templates, sections and conversations: the C library refuses each by one line or runs it
within its limits, under the address and undefined-behaviour sanitizers, and never dies.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chats
import embedded
import pytest
from embedded import Driver, DriverError

from satchel.formats.chat import Style
from satchel.formats.template import ChatTemplate
from satchel.formats.template.chat import named
from satchel.formats.tokenizer.guard import MarkerGuard
from satchel.formats.tokenizer.specials import Escape
from satchel.runtime.aot.records import TEMPLATE_CODE, TEMPLATE_HEAD, TEMPLATE_VARIANT
from satchel.runtime.aot.template_section import pack

DATA = embedded.ROOT / "tests" / "data" / "template"
OPTIONS = "allocator_may_return_null=1:max_allocation_size_mb=2048:detect_leaks=1"
VALUES = (0, 1, 2, 3, 7, 8, 31, 47, 48, 63, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello <s> Zürich"}]}


@pytest.fixture
def driver(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setenv("ASAN_OPTIONS", OPTIONS)
    with Driver(embedded.driver_program(tmp_path_factory, sanitized=True)) as made:
        yield made


def section_of(source: str) -> bytes:
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    made = pack(template, Style(), MarkerGuard(Escape(["<s>", "</s>"]), {}))
    assert made.refused == ""
    return made.data


def load(driver: Driver, raw: bytes, folder: Path) -> None:
    (folder / "section").write_bytes(raw)
    driver.say(f"read_section {folder / 'section'}")


def render(driver: Driver, request: Any, escaped: int = 1) -> str:
    raw = request if isinstance(request, bytes) else json.dumps(request).encode()
    return bytes.fromhex(driver.say(f"render {escaped} 1741523400 {raw.hex()}")).decode()


def tried(driver: Driver, raw: bytes, folder: Path, request: Any) -> bool:
    """Whether a section was loaded and ran."""
    try:
        load(driver, raw, folder)
        render(driver, request)
    except DriverError as error:
        assert error.code < 0
        assert 0 < len(error.text) < 500
        return False
    return True


# Templates that never end or want all memory, and a word of what is said of each.
ENDLESS = {
    "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}": "",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "nested more than 40 calls",
    "{% set n = namespace(t='a') %}{% for i in range(99) %}{% set n.t = n.t + n.t %}{% endfor %}": "memory",
    "{{ 'abc' * 100000000000 }}": "memory",
    "{{ [1] * 100000000000 }}": "",
    "{% set n = namespace(t=0) %}{% for i in range(999) %}{% set n.t = [n.t] %}{% endfor %}{{ n.t }}": "deep",
    "{% set l = [1] %}{% set x = l.append(l) %}{{ l }}": "deep",
    "{% set l = [1] %}{% for i in l %}{% set x = l.append(i) %}{% endfor %}": "",
    "{% set ns = namespace(t=[1]) %}{% for i in range(60) %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}"
    "{{ ns.t | tojson }}": "",
    "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}": "memory",
    "{{ ('a' * 100000 + 'b') in ('a' * 1000000) }}{% for i in range(99999) %}"
    "{{ ('a' * 1000 + 'b') in ('a' * 10000) }}{% endfor %}": "",
    "{{ '%9999999d' % 1 }}": "wider than",
    "{{ '{:9999999}'.format(1) }}": "wider than",
    "{{ 'a' | indent(99999999999) }}": "memory",
    "{{ 2 ** 99999 }}": "64 bits",
    "{{ range(999999999) }}": "at most 100000",
    "{{ messages | join('x' * 10000000) }}{{ (messages * 1000000) | join('x' * 1000000) }}": "",
    "{{ ('a' * 100000) | list | sort | join('b' * 100000) }}": "memory",
}


@pytest.mark.parametrize("source", ENDLESS)
def test_endless_templates_end(source: str, driver: Driver, tmp_path: Path) -> None:
    guarded = f"{{% if 'Zürich' in messages[-1].content %}}{source}{{% endif %}}"  # the build runs it too
    load(driver, section_of(guarded), tmp_path)
    with pytest.raises(DriverError, match=f"chat template line 1: .*{ENDLESS[source]}"):
        render(driver, HELLO)


REFUSED = {
    b"": "expected a value, got the end of the text",
    b"[]": "expected an object with messages",
    b'{"messages": []}': "messages: expected a list of messages",
    b'{"messages": [{"role": "user"}]}': r"messages\[0\]\.content: missing; a user message needs text",
    b'{"messages": [{"role": "x", "content": ""}]}': r"messages\[0\]\.role: expected one of system",
    b'{"messages": [{"role": "user", "content": "a"}], "seed": 1}': "'seed': expected messages, tools",
    b'{"messages": [{"role": "user", "content": "\xff"}]}': "expected UTF-8, got another byte at 43",
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}': "half of a surrogate pair",
    b'{"messages": [{"role": "user", "content": "a\n"}]}': "no control character in a string at byte 44",
    b'{"messages": [{"role": "user", "content": 1}]}': "expected text or a list of text parts",
    b'{"messages": [{"role": "user", "content": "a"}], "tools": [1]}': r"tools\[0\]: expected an object",
    b'{"messages": [{"role": "user", "content": "a"}],}': "expected a key in quotes at byte 48, got }",
    b'{"messages": 01}': "expected a value at byte 13",
    b'{"messages": 1e999}': "does not fit 64 bits",
    b'{"messages": 99999999999999999999}': "does not fit 64 bits",
    b'{"messages": [] x': "expected a comma or } at byte 16, got x",
    b'{"chat_template_kwargs": {"loop": 1}, "messages": [{"role": "user", "content": ""}]}': "is set by",
    b"[" * 100000: "nests deeper than 66",
    b'{"a":' * 100000: "nests deeper than 66",
}  # fmt: skip


def test_wrong_requests_are_refused_in_words(driver: Driver, tmp_path: Path) -> None:
    load(driver, section_of(named("chatml")), tmp_path)
    for request, text in REFUSED.items():
        with pytest.raises(DriverError, match=text):
            render(driver, request)
    assert render(driver, HELLO) == "<|im_start|>user\nHello <s> Zürich<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_that_raises_says_its_line(driver: Driver, tmp_path: Path) -> None:
    load(driver, section_of("{{ 'a' }}\n\n{{ raise_exception('no ' ~ messages|length) }}"), tmp_path)
    with pytest.raises(
        DriverError, match=r"^chat template line 3: the template refuses this conversation: no 1$"
    ):
        render(driver, HELLO)
    load(driver, section_of("{{ missing.name }}"), tmp_path)
    with pytest.raises(DriverError, match=r"^chat template line 1: 'missing' is undefined$"):
        render(driver, HELLO)


def test_an_error_is_one_line_without_control_characters(driver: Driver, tmp_path: Path) -> None:
    load(driver, section_of("{{ messages[0]['no\\n\\x1b[31m\\tmore'].x }}"), tmp_path)
    with pytest.raises(DriverError, match=r"^chat template line 1: 'no  \[31m more' is undefined$"):
        render(driver, HELLO)


def mutated(rng: random.Random, raw: bytes) -> bytes:
    """A section with a few numbers changed, most of them of its code, and a right checksum."""
    data = bytearray(raw)
    head = TEMPLATE_HEAD.itemsize
    code = head + TEMPLATE_VARIANT.itemsize
    instructions = struct.unpack_from("<I", raw, 20)[0]
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = rng.random()
        if place < 0.15:
            at = 16 + rng.randrange((head + TEMPLATE_VARIANT.itemsize - 16) // 4) * 4
        elif place < 0.85:
            at = code + rng.randrange(instructions) * TEMPLATE_CODE.itemsize + rng.choice((0, 4, 4, 8))
        else:
            at = 16 + rng.randrange((len(data) - 16) // 4) * 4
        kind = rng.randrange(4)
        if kind == 0:
            struct.pack_into("<I", data, at, rng.choice(VALUES))
        elif kind == 1:
            data[at + rng.randrange(4)] ^= 1 << rng.randrange(8)
        elif kind == 2:
            number = struct.unpack_from("<I", data, at)[0] + rng.choice((-1, 1, 8, -8))
            struct.pack_into("<I", data, at, number % (1 << 32))
        else:
            data[at] = rng.randrange(64)
    struct.pack_into("<I", data, 12, zlib.crc32(data[16:]))
    return bytes(data)


def mutate(driver: Driver, folder: Path, count: int, seed: int) -> tuple[int, int]:
    """How many mutated sections were refused, by the reader or in their run, and how many ran."""
    rng, ran = random.Random(seed), 0
    sources = [path.read_text("utf-8") for path in sorted(DATA.glob("*.jinja"))]
    raws = [
        section_of(source) for source in (*sources, named("gpt-oss"), named("llama2-sys"), named("command-r"))
    ]
    for _ in range(count):
        ran += tried(driver, mutated(rng, rng.choice(raws)), folder, chats.request(rng))
    return count - ran, ran


def test_some_mutated_sections(driver: Driver, tmp_path: Path) -> None:
    refused, ran = mutate(driver, tmp_path, 250, seed=0)
    assert refused > 75
    assert ran > 25


@pytest.mark.nightly
def test_a_hundred_thousand_mutated_sections(driver: Driver, tmp_path: Path) -> None:
    refused, ran = mutate(driver, tmp_path, 100_000, seed=1)
    assert min(refused, ran) > 5000
