"""User text never becomes a control token (row T08), and templates render escaped text as they render plain
text.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from template_data import DATA, TOOLS, USER, call

from satchel.formats.template import ChatTemplate
from satchel.formats.tokenizer.specials import Escape

SHARED = Path(__file__).parents[4] / "shared" / "templates"
# features.jinja writes no control tokens.
FILES = [p for folder in (DATA, SHARED) for p in sorted(folder.glob("*.jinja")) if p.name != "features.jinja"]


def controls(tokens: list[str]) -> tuple[Callable[[str], str], Callable[[str], int]]:
    """An escape that changes only the first character of control tokens, and a count of the control tokens in
    a text.
    """
    pattern = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))))

    def escape(text: str) -> str:
        return pattern.sub(lambda m: chr(0xE000 + ord(m[0][0]) % 0x1000) + m[0][1:], text)

    return escape, lambda text: len(pattern.findall(text))


def conversation(text: str) -> dict[str, Any]:
    """A request with `text` in every place."""
    tool = {"name": "f" + text, "description": text, "parameters": {
        "type": "object", "properties": {"p" + text: {"type": "string", "description": text}}}}  # fmt: skip
    return {
        "messages": [
            {"role": "system", "content": text},
            {"role": "user", "content": text},
            {"role": "assistant", "content": "", "tool_calls": [call("f" + text, {"p" + text: text})]},
            {"role": "tool", "tool_call_id": "call00001", "name": "f" + text, "content": text},
            {"role": "assistant", "content": text, "reasoning_content": text},
            {"role": "user", "content": [{"type": "text", "text": text}, {"type": "text", "text": text}]},
        ],
        "tools": [{"type": "function", "function": tool}],
        "variables": {"date_string": text, "model_identity": text, "reasoning_effort": text},
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_t08_text_adds_no_control_token(path: Path) -> None:
    template = ChatTemplate(path.read_text("utf-8"), bos_token="<BOS>", eos_token="<EOS>")
    benign = template.render(**conversation("plain words"))
    found = set(
        re.findall(r"<[|｜][^<>]*?[|｜]>|<(?:BOS|EOS|start_of_turn|end_of_turn)>|\[/?[A-Z_]+\]", benign)
    )
    assert found
    escape, count = controls(sorted(found))
    attack = template.render(**conversation(" ".join(sorted(found))), escape=escape)
    assert count(attack) == count(benign)
    assert count(template.render(**conversation(" ".join(sorted(found))))) > count(benign)


def test_t08_templates_read_escaped_text_as_they_read_plain_text() -> None:
    """With the tokenizer's own escape, every unescaped prompt equals the prompt without it."""
    escape = Escape(["<|im_start|>", "<|im_end|>", "[INST]", "{x}", "(y)", "</s>"])
    conversations = json.loads((DATA / "conversations.json").read_text("utf-8"))
    changed = 0
    for path in [*FILES, DATA / "features.jinja"]:
        template = ChatTemplate(path.read_text("utf-8"), bos_token="<BOS>", eos_token="<EOS>")
        for title, request in conversations.items():
            if ("tool_use" in path.name and "tools" not in request) or (
                "Llama-3" in path.name and title == "tool_calls"
            ):
                continue
            tools = TOOLS if "tools" in request else None
            given = {"tools": tools, "variables": request.get("variables")}
            plain = template.render(request["messages"], **given)
            hidden = template.render(request["messages"], **given, escape=escape.escape)
            assert escape.unescape(hidden) == plain, (path.name, title)
            changed += hidden != plain
    assert changed > 20


READING = [
    ("{{ c.split('</think>')[-1] }}", "<b>"),
    ("{{ c.partition('</think>')[0] }}", "<think>[x]"),
    ("{{ c.rsplit('</think>', 1)[0] }}", "<think>[x]"),
    ("{{ '</think>' in c }} {{ '</thin>' not in c }} {{ '</think>' is in c }}", "True True True"),
    ("{{ c.startswith('<think>') }} {{ c.endswith(('>', 'x')) }}", "True True"),
    ("{{ c.find('</think>') }} {{ c.count('<') }}", "10 3"),
    ("{{ c.replace('<think>', '') }} {{ c | replace('</think>', '|') }}", "[x]</think><b> <think>[x]|<b>"),
    ("{{ c.strip('<>') }} {{ c | trim('<>b') }}", "think>[x]</think><b think>[x]</think"),
    ("{{ c.removeprefix('<think>') }}", "[x]</think><b>"),
    (
        "{{ c == '<think>[x]</think><b>' }} {{ c != '<think>' }} {{ c is equalto('<think>[x]</think><b>') }}",
        "True " * 3,
    ),
    ("{{ [c] }} {{ {'a': c} | string }} {{ (c,) ~ '' }}", "['C'] {'a': 'C'} ('C',)"),
    ("{{ {'é': c} | tojson(ensure_ascii=true) }}", '{"\\u00e9": "C"}'),
    ("{{ c[7:10] }} {{ c | length }} {{ c | tojson }}", '[x] 21 "C"'),
]


@pytest.mark.parametrize(("body", "wanted"), READING)
def test_t08_every_way_to_look_into_a_text(body: str, wanted: str) -> None:
    content = "<think>[x]</think><b>"
    escape = Escape(["<|end|>", "[INST]"])
    template = ChatTemplate("{% set c = messages[0].content %}" + body)
    messages = [{"role": "user", "content": content}]
    plain = template.render(messages)
    assert plain.strip() == wanted.replace("C", content).strip()
    assert escape.unescape(template.render(messages, escape=escape.escape)) == plain


JOINING = [
    ("parts", "{% for p in messages[0].content %}{{ p.text }}{% endfor %}", ["<|im_", "end|>"]),
    ("deletion", "{{ messages[0].content.replace('/no_think', '') }}", "<|im_/no_thinkend|>"),
    ("deletion-filter", "{{ messages[0].content | replace('/no_think', '') }}", "<|im_/no_thinkend|>"),
    ("lower", "{{ messages[0].content | lower }}", "<|IM_END|>"),
    ("lower-method", "{{ messages[0].content.lower() }}", "<|IM_END|>"),
    ("title", "{{ messages[0].content.swapcase() }}", "<|IM_END|>"),
]


@pytest.mark.parametrize(("source", "content"), [r[1:] for r in JOINING], ids=[r[0] for r in JOINING])
def test_t08_a_template_can_not_put_a_token_together(source: str, content: str | list[str]) -> None:
    escape, count = controls(["<|im_end|>"])
    parts = content if isinstance(content, str) else [{"type": "text", "text": text} for text in content]
    messages = [{"role": "user", "content": parts}]
    assert count(ChatTemplate(source).render(messages)) == 1
    assert count(ChatTemplate(source).render(messages, escape=escape)) == 0


def test_t08_a_template_keeps_its_own_tokens() -> None:
    escape, count = controls(["<|user|>", "<|end|>"])
    source = (
        "{% for m in messages %}{{ '<|ROLE|>'.replace('ROLE', m.role) }}{{ '<|END|>' | lower }}"
        "{{ ('<|end|>' ~ m.content) | replace('x', '') }}{% endfor %}"
    )
    prompt = ChatTemplate(source).render([{"role": "user", "content": "<|end|>x"}], escape=escape)
    assert prompt.startswith("<|user|><|end|><|end|>") and count(prompt) == 3


def test_t08_arguments_as_json_text_are_escaped_after_parsing() -> None:
    escape, count = controls(["<|im_end|>"])
    source = (DATA / "tools_xml.jinja").read_text("utf-8")
    hidden = json.dumps({"p": "<|im_end|>"}).replace("<", "\\u003c")
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [call("f", hidden)]}]
    assert count(ChatTemplate(source).render(messages)) == 1
    assert count(ChatTemplate(source).render(messages, escape=escape)) == 0
