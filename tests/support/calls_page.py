"""Generates docs/models.md's table about tool calls and thinking from the parser's and grammars' data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from doc_tables import replaced

from satchel.formats.chat.family import families
from satchel.formats.chat.style import PAIRS
from satchel.runtime.grammar.styles import (
    STYLES,
    JsonArguments,
    KeywordArguments,
    TagSyntax,
    ToolCallFormat,
)

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- calls -->\n", "<!-- end of calls -->\n"
MODELS = {
    "command_r": "Command R7B, Command A",
    "command_r_plus": "Command R and R+ of 2024",
    "deepseek": "DeepSeek V3, V3.1, R1 (its own older format too) and distills",
    "dsml": "DeepSeek V3.2 and V4, MiniMax M2",
    "gigachat": "GigaChat 3",
    "function_tag": "Functionary 3.1, Llama 3.x with tools in the system message",
    "functionary": "Functionary 3.2",
    "gemma": "Gemma 4, FunctionGemma",
    "glm": "GLM 4.5 and later, Ling, Laguna",
    "harmony": "gpt-oss",
    "hunyuan": "Hunyuan 3",
    "hermes": "Hermes, Qwen 2.5 and 3, Granite 4, SmolLM3, Falcon H1, MiMo",
    "kimi": "Kimi K2",
    "listed": "Granite 3 and 20B, Phi 4 mini, Nemotron, Hunyuan, MiniMax M1, GigaChat 3.1, Apertus, "
    "Firefunction, LongCat, InternLM 2",
    "llama3": "Llama 3.x and 4, xLAM; also lists of objects or of Python's calls",
    "minicpm": "MiniCPM 5",
    "mistral": "Mistral, Mixtral, Ministral, Devstral: old list and `NAME[ARGS]`",
    "named": "GLM 4 (0414, chatglm)",
    "pythonic": "LFM2, Llama 3.2 and 4, ToolACE; OLMo 3; Gemma 3; MiniCPM 3 and 4",
    "qwen_xml": "Qwen3-Coder, Qwen 3.5, Nemotron 3, Seed-OSS",
    "solar": "Solar Open",
    "spoken": "every template without a place for tools",
}
GIVEN = {"a": "x", "n": 3}


def example(format: ToolCallFormat) -> str:
    """The call f(a="x", n=3) in this format."""
    name = f"f{':0' if format.numbered else ''}"
    call = f"{format.before}{name}{format.middle}{_arguments(format.arguments)}{format.after}"
    return f"{format.open}{call}{format.close}"


def _arguments(how: JsonArguments | KeywordArguments | TagSyntax) -> str:
    if isinstance(how, JsonArguments):
        return json.dumps(GIVEN)
    if isinstance(how, KeywordArguments):
        return how.separator.join(f"{key}={json.dumps(value)}" for key, value in GIVEN.items())
    return how.separator.join(_tagged(how, key, value) for key, value in GIVEN.items())


def _tagged(tags: TagSyntax, key: str, value: object) -> str:
    text = isinstance(value, str)
    start, end = (tags.text or tags.value, tags.text_end or tags.end) if text else (tags.value, tags.end)
    return f"{tags.key}{key}{start}{value}{end}{tags.behind}"


def lines() -> Iterator[str]:
    yield "| family | models | a call of `f` |\n|---|---|---|\n"
    for name in sorted(families()):
        for format in STYLES[name].values():
            shown = example(format).replace("\n", "⏎").replace("|", "\\|")
            yield f"| `{name}` | {MODELS[name]} | `` {shown} `` |\n"
    pairs = ", ".join(f"`{opening} … {closing}`" for opening, closing in PAIRS)
    yield f"\nThinking that templates don't write themselves is known by these marks: {pairs}.\n"


def page(text: str) -> str:
    """The page's text with the table generated anew."""
    return replaced(text, BEGIN, "".join(lines()), END)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
