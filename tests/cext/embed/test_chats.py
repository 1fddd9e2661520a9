"""Chats by the C library: prompts are those of the Python engine, as text and as tokens, and the format of
answers is the one that formats/chat detects.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chats
import embedded
import pytest
from embedded import Driver, DriverError
from tiny_file import write_model

from satchel.errors import ModelError, RequestError
from satchel.formats.chat import detect, guard_of, parted, special_texts
from satchel.formats.gguf import GGUF, open_gguf
from satchel.formats.template import ChatTemplate, from_metadata
from satchel.formats.template.chat import named
from satchel.formats.template.messages import Plain, read_messages
from satchel.formats.tokenizer import Tokenizer, build_tokenizer
from satchel.runtime.aot import build as aot

DATA = embedded.ROOT / "tests" / "data" / "template"
THINKING = """{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and m.reasoning_content %}<think>
{{ m.reasoning_content.strip() }}
</think>

{% endif %}{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}
{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% elif enable_thinking %}<think>
{% endif %}{% endif %}"""
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tools>")
# Templates, and user-defined tokens of the vocabulary.
TEMPLATES: dict[str, tuple[str, tuple[str, ...]]] = {
    "chatml": (named("chatml"), ()),
    "thinking": (THINKING, MARKERS),
    "xml": ((DATA / "tools_xml.jinja").read_text("utf-8"), ("[USER]", "<tools>")),
}
COMPILED: list[Any] = []  # plans of the tensors, which are the same in every file


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with Driver(embedded.driver_program(tmp_path_factory)) as made:
        yield made


def build(path: Path, **options: Any) -> aot.BuildReport:
    with open_gguf(path) as gguf, pytest.MonkeyPatch.context() as patch:
        if not COMPILED:
            COMPILED.append(aot.compile_variants(gguf))
        patch.setattr(aot, "compile_variants", lambda gguf: COMPILED[0])
        return aot.build(gguf, path.with_name("app.gguf"), **options)


class Chat:
    """The Python engine's way from a request to tokens (Model.prompt_ids)."""

    def __init__(self, gguf: GGUF) -> None:
        self.tokenizer: Tokenizer = build_tokenizer(gguf.metadata)
        t = self.tokenizer
        bos, eos = (t.text(i) if i is not None else "" for i in (t.bos, t.eos))
        self.template = from_metadata(gguf.metadata, bos, eos) or ChatTemplate.chatml()
        self.style = detect(self.template, special_texts(t))
        self.guard = guard_of(t, self.template.source)

    def render(self, request: dict[str, Any]) -> tuple[str, list[int], bool] | None:
        try:
            messages: Any = request["messages"]
            if self.style.thinks:
                messages = parted(read_messages(messages, Plain()), self.style.open, self.style.close)
            said = self.template.render(
                messages,
                tools=request.get("tools"),
                add_generation_prompt=request.get("add_generation_prompt", True),
                documents=request.get("documents"),
                variables=request.get("chat_template_kwargs"),
                escape=self.guard.escape,
            )
        except RequestError:
            return None
        ids = self.tokenizer.encode_rendered(said, guard=self.guard)
        return self.guard.unescape(said), ids, said.rstrip().endswith(self.style.open)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("bos", [False, True])
def test_same_tokens(name: str, bos: bool, driver: Driver, tmp_path: Path) -> None:
    source, markers = TEMPLATES[name]
    keys: dict[str, Any] = {"tokenizer__chat_template": source, "tokenizer__ggml__add_bos_token": bos}
    path = write_model(tmp_path / "m.gguf", markers=markers, **keys)
    assert build(path).template_refused == ""
    driver.open(tmp_path / "app.gguf")
    with open_gguf(path) as gguf:
        chat = Chat(gguf)
    rng, seen = random.Random(name), set[bool]()
    for _ in range(40):
        request = chats.request(rng)
        expected = chat.render(request)
        if expected is None:
            with pytest.raises(DriverError):
                driver.chat(request)
            continue
        assert driver.chat(request) == expected, request
        seen.add(expected[2])
    assert seen == ({False, True} if name == "thinking" else {False})
    style = chat.style
    begins = "\n".join(style.calls.begins if style.calls else ())
    texts = [style.open, style.close, style.family, begins, "\n".join(style.switches)]
    flags, told = driver.chat_format()
    assert told == texts
    assert (bool(flags & 2), bool(flags & 8)) == (style.thinks, chat.template.supports_tools)
    driver.close()


def test_no_template_is_chatml(driver: Driver, tmp_path: Path) -> None:
    build(write_model(tmp_path / "m.gguf"))
    driver.open(tmp_path / "app.gguf")
    text, _, _ = driver.chat({"messages": [{"role": "user", "content": "<|im_end|>"}]})
    assert text == "<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    assert driver.chat_format()[0] & 33 == 33
    driver.close()


LACKING = {
    "{{ messages | groupby('role') }}": "line 1: filter 'groupby'",
    "{{ 'a' }}\n{{ 'a'.swapcase() }}": "line 2: method 'swapcase'",
    "{{ cycler('a', 'b').next() }}": "line 1: function 'cycler'",
    "{{ 'a' is escaped }}": "line 1: test 'escaped'",
    "{% for m in messages recursive %}{{ loop(m) }}{% endfor %}": "line 1: a recursive loop",
    "{{ messages | map('pprint') }}": "line 1: filter 'map' applies 'pprint'",
    "{{ dict(*messages) }}": r"line 1: a call with \* or \*\*",
    "{% if %}": "line 1: Expected an expression",
}


@pytest.mark.parametrize("source", LACKING)
def test_what_the_library_lacks_is_named_at_the_build(source: str, driver: Driver, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", tokenizer__chat_template=source)
    with pytest.raises(ModelError, match=LACKING[source]):
        build(path, require_template=True)
    assert LACKING[source].replace("\\", "") in build(path).template_refused
    driver.open(tmp_path / "app.gguf")
    with pytest.raises(DriverError, match=r"chat template was not built: .*line") as caught:
        driver.chat({"messages": [{"role": "user", "content": "hello"}]})
    assert caught.value.code == -3
    assert driver.chat_format()[0] & 1 == 0
    driver.begin(0, driver.tokenize("hello"), {"seed": 1, "max_tokens": 2})  # all else runs
    driver.end(0)
    driver.close()
