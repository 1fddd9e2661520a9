"""Chat templates by the C library give the prompts of formats/template, byte for byte, and refuse what these
refuse.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import chats
import embedded
import pytest
from embedded import Driver, DriverError

from satchel.errors import RequestError
from satchel.formats.chat import Style, detect, parted
from satchel.formats.chat.tokens import TAG
from satchel.formats.template import ChatTemplate
from satchel.formats.template.chat import named, names
from satchel.formats.template.messages import Plain, read_messages
from satchel.formats.tokenizer.guard import MarkerGuard
from satchel.formats.tokenizer.specials import Escape
from satchel.runtime.aot.template_section import pack

DATA = embedded.ROOT / "tests" / "data" / "template"
SHARED = embedded.ROOT.parent / "shared" / "templates"
NOW = datetime(2025, 3, 9, 12, 30)
SOURCES: dict[str, str] = {
    **{name: named(name) for name in names()},
    **{f"tests/{path.name}": path.read_text("utf-8") for path in sorted(DATA.glob("*.jinja"))},
    **{path.name: path.read_text("utf-8") for path in sorted(SHARED.glob("*.jinja"))},
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedded.driver_program(tmp_path_factory)


@pytest.fixture
def driver(program: Path) -> Iterator[Driver]:
    with Driver(program) as made:
        yield made


class Prompts:
    """A template in both engines."""

    def __init__(self, driver: Driver, source: str, folder: Path) -> None:
        self.template = ChatTemplate(source, bos_token="<s>", eos_token="</s>", now=lambda: NOW)
        self.style: Style = detect(self.template)
        texts = {"<s>", "</s>", "<|im_end|>", *TAG.findall(source)}
        self.guard = MarkerGuard(Escape(sorted(texts)), {})
        made = pack(self.template, self.style, self.guard)
        assert made.refused == ""
        (folder / "section").write_bytes(made.data)
        self._driver = driver
        driver.say(f"read_section {folder / 'section'}")

    def ours(self, request: dict[str, Any], escaped: bool) -> str | None:
        """The prompt by the C library; None where it refuses."""
        raw = json.dumps(request, ensure_ascii=False).encode()
        try:
            told = self._driver.say(
                f"render {escaped:d} {int(NOW.replace(tzinfo=UTC).timestamp())} {raw.hex()}"
            )
        except DriverError as error:
            self.error = error.text
            return None
        return bytes.fromhex(told).decode()

    def theirs(self, request: dict[str, Any], escaped: bool) -> str | None:
        """The prompt by formats/template, of what runtime/api hands to it."""
        escape = self.guard.escape if escaped else None
        try:
            messages: Any = request["messages"]
            if self.style.thinks:
                messages = parted(read_messages(messages, Plain()), self.style.open, self.style.close)
            text = self.template.render(
                messages,
                tools=request.get("tools"),
                add_generation_prompt=request.get("add_generation_prompt", True),
                documents=request.get("documents"),
                variables=request.get("chat_template_kwargs"),
                escape=escape,
            )
        except RequestError as error:
            self.other_error = str(error)
            return None
        return self.guard.unescape(text) if escaped else text


def compare(driver: Driver, name: str, folder: Path, count: int) -> int:
    """How many of so many conversations had a prompt."""
    both = Prompts(driver, SOURCES[name], folder)
    rng, shown = random.Random(name), 0
    for _ in range(count):
        request = chats.request(rng)
        for escaped in (False, True):
            ours, theirs = both.ours(request, escaped), both.theirs(request, escaped)
            assert ours == theirs, (request, getattr(both, "error", ""), getattr(both, "other_error", ""))
            shown += theirs is not None
    return shown


@pytest.mark.parametrize("name", SOURCES)
def test_same_prompts(name: str, driver: Driver, tmp_path: Path) -> None:
    assert compare(driver, name, tmp_path, 8) > 2


@pytest.mark.nightly
@pytest.mark.parametrize("name", SOURCES)
def test_same_prompts_of_400_conversations(name: str, driver: Driver, tmp_path: Path) -> None:
    assert compare(driver, name, tmp_path, 400) > 100  # a template for tools refuses most others
