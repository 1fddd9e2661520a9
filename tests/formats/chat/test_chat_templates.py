"""Tool-call formats detected by rendering, and round trips: the parser reads what a template writes."""

import json
import re
from pathlib import Path
from typing import Any

import calls_page
import pytest
from call_templates import BEGINS, OWN, template_of
from chat_cases import TOOLS
from template_data import DATA

from satchel.formats.chat import ChatParser, Collected, Style, detect, fit
from satchel.formats.chat.family import families
from satchel.formats.gguf import open_gguf
from satchel.formats.template import ChatTemplate
from satchel.formats.tokenizer import Kind, Tokenizer, build_tokenizer
from satchel.runtime.grammar import styles

SHARED = Path(__file__).parents[4] / "shared"
THINK = ("<think>", "</think>")
STYLES: dict[str, tuple[str, bool, tuple[str, ...]]] = {
    "HuggingFaceTB-SmolLM3-3B": ("spoken", True, ("enable_thinking",)),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("hermes", False, ()),
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", False, ()),
    "Qwen-Qwen3-0.6B": ("hermes", True, ("enable_thinking",)),
    "Qwen3-Coder": ("qwen_xml", False, ()),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("deepseek", True, ()),
    "deepseek-ai-DeepSeek-V3.1": ("deepseek", True, ("enable_thinking", "thinking")),
    "google-gemma-2-2b-it": ("spoken", False, ()),
    "llama-cpp-deepseek-r1": ("deepseek", True, ()),
    "meta-llama-Llama-3.1-8B-Instruct": ("llama3", False, ()),
    "meta-llama-Llama-3.2-3B-Instruct": ("llama3", False, ()),
    "microsoft-Phi-3.5-mini-instruct": ("spoken", False, ()),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral", False, ()),
    "openai-gpt-oss-120b": ("harmony", True, ()),
    "alternating": ("spoken", False, ()),
    "chatml": ("spoken", False, ()),
    "parts": ("spoken", False, ()),
    "tools_xml": ("", False, ()),
}
# These templates refuse or omit the second of two calls in one message.
SINGLE = ("meta-llama", "openai-gpt-oss")
ARGUMENTS: list[dict[str, Any]] = [
    {"city": "Zürich", "days": 3},
    {"city": 'a "b" \\ \n {}[] </x> é', "tags": ["x", "y"], "deep": {"a": [1, {"b": None}]}},
    {},
]
USER = {"role": "user", "content": "hi"}


def load(name: str) -> ChatTemplate:
    path = next(
        (p for p in (SHARED / "templates" / f"{name}.jinja", DATA / f"{name}.jinja") if p.exists()), None
    )
    if path is None:
        pytest.skip(f"../shared/templates/{name}.jinja is absent")
    return ChatTemplate(path.read_text("utf-8"), bos_token="<BOS>", eos_token="<EOS>")


def own(family: str) -> ChatTemplate:
    return ChatTemplate(template_of(family))


def calls_of(arguments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call0000{i}",
            "type": "function",
            "function": {"name": "weather", "arguments": json.dumps(a)},
        }
        for i, a in enumerate(arguments)
    ]


@pytest.mark.parametrize("name", STYLES)
def test_a_style_is_found_by_rendering(name: str) -> None:
    style = detect(load(name))
    family, thinks, switches = STYLES[name]
    assert (style.family, style.thinks, style.switches) == (family, thinks, switches)
    if family != "harmony":
        assert (style.open, style.close) == THINK


@pytest.mark.parametrize("family", OWN)
def test_other_families_are_found_by_rendering(family: str) -> None:
    style = detect(own(family))
    assert style.family == family
    marks = [*style.calls.tells, *sorted(style.calls.begins, key=len)[::-1]]
    assert style.begin == next((b for b in marks if b in OWN[family]), "")


@pytest.mark.parametrize(("family", "begin"), [(f, b) for f, begins in BEGINS.items() for b in begins if b])
def test_other_markers_are_found_by_rendering(family: str, begin: str) -> None:
    style = detect(ChatTemplate(template_of(family, begin)))
    # Llama 4 has its marker around lists of both kinds.
    assert style.family == ("llama3" if begin == "<|python_start|>" else family)
    assert style.begin == begin


@pytest.mark.parametrize(
    "arguments",
    [
        "{{ k }}={{ v }}",  # text without quotes, which can't be read back
        "{{ k }}={{ v | tojson }}",  # no comma between two
        '{{ k }}="{{ v }}"{{ ", " if not loop.last }}',  # numbers as texts
    ],
)
def test_calls_of_python_are_known_however_badly_a_template_writes_them(arguments: str) -> None:
    begin = template_of("pythonic", "[").replace("[[", "[").replace("]<|tool_call_end|>", "]")
    plain = re.sub(r"\{\{ k \}\}=.*?(?=\{% endfor %\})", lambda _: arguments, begin, count=1)
    style = detect(ChatTemplate(plain))
    assert (style.family, style.begin) == ("pythonic", "")


SILENT = "{{ tools | tojson if tools }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("tokens", "family", "begin"),
    [
        (("<|tool_call_start|>", "<|tool_call_end|>"), "pythonic", "<|tool_call_start|>"),
        (("<|tool_call|>", "<|end_of_text|>"), "listed", "<|tool_call|>"),
        (("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>"), "glm", "<tool_call>"),
        (("<tool_call>", "</tool_call>"), "hermes", "<tool_call>"),
        (("<|eot_id|>",), "spoken", ""),
    ],
)
def test_a_template_that_shows_tools_and_no_calls_leaves_it_to_the_vocabulary(
    tokens: tuple[str, ...], family: str, begin: str
) -> None:
    style = detect(ChatTemplate(SILENT), tokens)
    assert (style.family, style.begin, style.spoken) == (family, begin, family != "spoken")
    if style.spoken:  # as earlier calls stand in the prompt
        parser = ChatParser(style, tools=TOOLS)
        said = '{"tool_calls": [{"name": "time", "arguments": {}}]}'
        assert len(Collected().add_all(parser.feed(said) + parser.finish()).tool_calls) == 1
    without = ChatTemplate(SILENT.replace("{{ tools | tojson if tools }}", ""))
    assert detect(without, tokens).family == "spoken"


def test_a_prompt_that_speaks_of_thinking_does_not_begin_it() -> None:
    source = (
        "{% if thinking %}Write your thoughts between <think></think> and answer then.{% endif %}"
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
    )
    style = detect(ChatTemplate(source))
    assert style.thinks and (style.lead, style.between, style.tail) == ("\n", "\n", "\n\n")


def tools_for(name: str) -> list[dict[str, Any]]:
    """The tools that a template can write; one template recurses for ever over an array."""
    if not name.startswith("NousResearch"):
        return TOOLS
    text = {"type": "string", "description": "Text"}
    parameters = {"type": "object", "properties": {"city": text}}
    return [
        {"type": "function", "function": {"name": "weather", "description": "x", "parameters": parameters}}
    ]


def answered(template: ChatTemplate, message: dict[str, Any], tools: list[dict[str, Any]]) -> str:
    """What a template writes for an answer: the text after the prompt that asks for it."""
    asked = template.render([USER], tools=tools, add_generation_prompt=False)
    whole = template.render([USER, message], tools=tools, add_generation_prompt=False)
    at = next((i for i, (a, b) in enumerate(zip(asked, whole, strict=False)) if a != b), len(asked))
    return whole[at:]


def reread(style: Style, body: str) -> Collected:
    family = style.calls
    assert family is not None
    starts = [at for b in family.begins if (at := body.find(b)) >= 0] or [
        body.find("{" if family.opens else "weather")
    ]
    parser = ChatParser(style, tools=TOOLS)
    return Collected().add_all(parser.feed(body[min(starts) :]) + parser.finish())


@pytest.mark.parametrize("name", [*(n for n in STYLES if STYLES[n][0]), *OWN])
@pytest.mark.parametrize("count", [1, 3])
def test_rendered_calls_are_read_back(name: str, count: int) -> None:
    template = own(name) if name in OWN else load(name)
    style = detect(template)
    for first in range(1 if count == 3 else 3):
        given = ARGUMENTS[first : first + count]
        if count > 1 and name.startswith(SINGLE):
            given = given[:1]
        message = {"role": "assistant", "content": "", "tool_calls": calls_of(given)}
        found = reread(style, answered(template, message, tools_for(name)))
        assert [(c.name, json.loads(c.arguments)) for c in found.tool_calls] == [
            ("weather", a) for a in given
        ]
        if style.family == "mistral" and name not in OWN:
            assert [c.id for c in found.tool_calls] == [f"call0000{i}" for i in range(len(given))]


def test_thinking_that_is_rendered_is_read_back() -> None:
    template = load("Qwen-Qwen3-0.6B")
    style = detect(template)
    said = {"role": "assistant", "content": "The answer.", "reasoning_content": "Let me\nthink."}
    body = (
        answered(template, said, TOOLS).removeprefix("<|im_start|>assistant\n").removesuffix("<|im_end|>\n")
    )
    parser = ChatParser(style)
    found = Collected().add_all(parser.feed(body) + parser.finish())
    assert (found.reasoning, found.content) == ("Let me\nthink.", "The answer.")
    assert found.message() == said


def test_the_page_shows_every_family_and_what_is_read_of_it() -> None:
    text = calls_page.PAGE.read_text("utf-8")
    assert calls_page.page(text) == text
    assert calls_page.MODELS.keys() == families().keys()
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}
    for name in families():
        for form in styles.STYLES[name].values():
            parser = ChatParser(Style(family=name), tools=[{"name": "f", "parameters": schema}])
            events = [*parser.feed(calls_page.example(form)), *parser.finish()]
            found = Collected().add_all(events).tool_calls
            assert [(c.name, json.loads(c.arguments)) for c in found] == [("f", calls_page.GIVEN)], name


# T08

VOCABS = sorted((SHARED / "vocabs").glob("*.gguf"))
BUNDLED = sorted((Path(__file__).parents[3] / "models").glob("*.gguf"))
NAMES = [
    "chatml",
    "alternating",
    "parts",
    "tools_xml",
    *(p.stem for p in sorted((SHARED / "templates").glob("*"))),
]
TOKENIZERS: dict[Path, Tokenizer] = {}


def tokenizer_of(path: Path) -> Tokenizer:
    if path not in TOKENIZERS:
        with open_gguf(path) as gguf:
            TOKENIZERS[path] = build_tokenizer(gguf.metadata)
    return TOKENIZERS[path]


def everywhere(text: str) -> list[dict[str, Any]]:
    call = {
        "id": "call00001",
        "type": "function",
        "function": {"name": "weather", "arguments": {"city": text}},
    }
    return [
        {"role": "system", "content": text},
        {"role": "user", "content": text},
        {"role": "assistant", "content": "", "reasoning_content": text, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00001", "name": "weather", "content": text},
        {"role": "assistant", "content": text, "reasoning_content": text},
        {"role": "user", "content": text},
    ]


@pytest.mark.parametrize("path", [*VOCABS, *BUNDLED], ids=lambda path: path.stem)
def test_t08_user_text_adds_no_control_token(path: Path) -> None:
    """For every vocabulary and template: markers in user text stay text, letter for letter."""
    tokenizer = tokenizer_of(path)
    controls = frozenset(tokenizer.vocab.ids_of(Kind.CONTROL))
    texts = [tokenizer.vocab.tokens[i] for i in sorted(controls)][:40]
    style_markers = "<think></think><tool_call></tool_call>[TOOL_CALLS]<|channel|><|message|>"
    attack = "x" + "".join(texts) + style_markers + "y"
    bos, eos = (tokenizer.text(i) if i is not None else "" for i in (tokenizer.bos, tokenizer.eos))
    for name in NAMES:
        source = load(name).source
        template = ChatTemplate(source, bos_token=bos, eos_token=eos)

        def ids(text: str, template: ChatTemplate = template, name: str = name) -> list[int]:
            rendered = template.render(fit(everywhere(text)), tools=tools_for(name), escape=tokenizer.escape)
            return tokenizer.encode_rendered(rendered)

        benign, hostile = ids("plain words"), ids(attack)
        kept = [i for i in benign if i in controls]
        assert [i for i in hostile if i in controls] == kept, name
        if tokenizer.kind != "bert" and name not in ("parts",):  # WordPiece changes letters
            assert re.sub(r"\s", "", attack) in re.sub(r"\s", "", tokenizer.decode(hostile, special=True)), (
                name
            )


PLACES = {
    "xml_tools": "{% if xml_tools %}{{ xml_tools | tojson }} answer in <tool_call></tool_call>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}",
    "system message": "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% if m.role == 'system' and m.tools %}<|tool|>{{ m.tools }}<|/tool|>{% endif %}{% endfor %}",
}


@pytest.mark.parametrize(
    ("place", "tokens", "family"),
    [("xml_tools", (), "hermes"), ("system message", ("<|tool_call|>", "<|/tool_call|>"), "listed")],
)
def test_tools_go_where_a_template_has_its_own_place_for_them(
    place: str, tokens: tuple[str, ...], family: str
) -> None:
    template = ChatTemplate(PLACES[place])
    assert template.supports_tools
    for system in ([], [{"role": "system", "content": "Be kind."}]):
        said = template.render([*system, USER], tools=TOOLS)
        assert '"weather"' in said and "You can call these tools" not in said
        assert ("Be kind." in said) == bool(system)
        assert "weather" not in template.render([*system, USER])
    assert detect(template, tokens).family == family


BY_ID = (
    "{{ tools | tojson if tools }}{% for m in messages %}<|{{ m.role }}|>{% for c in m.tool_calls or [] %}"
    "<|tool_calls_section_begin|><|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>"
    "{{ c.function.arguments | tojson }}<|tool_call_end|><|tool_calls_section_end|>{% endfor %}"
    "{% if m.role == 'tool' %}Of {{ m.tool_call_id }}: {% endif %}{{ m.content or '' }}{% endfor %}"
)


def test_ids_bring_the_names_where_a_template_writes_nothing_else_of_them() -> None:
    """Kimi K2.5's template does this; ids that contain the name already stay."""
    template = ChatTemplate(BY_ID)
    assert (detect(template).family, detect(template).begin) == ("kimi", "<|tool_calls_section_begin|>")
    for given, shown in (
        ("call00000", "functions.weather:0"),
        ("functions.weather:7", "functions.weather:7"),
    ):
        (asked,) = calls_of([{"city": "Bern"}])
        called = {"role": "assistant", "content": None, "tool_calls": [{**asked, "id": given}]}
        result = {"role": "tool", "tool_call_id": given, "content": "rain"}
        said = template.render([USER, called, result], tools=TOOLS)
        assert f'<|tool_call_begin|>{shown}<|tool_call_argument_begin|>{{"city": "Bern"}}' in said
        assert f"Of {shown}: rain" in said and "tool_response" not in said


def test_tools_that_only_a_system_message_brings_get_one() -> None:
    """FunctionGemma's template does this, which needs a list of tools."""
    template = ChatTemplate(
        "{% set given = tools | length > 0 %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
        "{% if m.role == 'system' and given %}{{ tools | tojson }}{% endif %}{% endfor %}"
    )
    assert template.supports_tools
    kind = {"role": "system", "content": "Be kind."}
    assert template.render([kind, USER], tools=TOOLS).startswith('<|system|>Be kind.[{"type": "function"')
    assert template.render([USER], tools=TOOLS).startswith('<|system|>[{"type": "function"')
