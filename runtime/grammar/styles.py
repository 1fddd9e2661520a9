"""Tool-call formats of the model families, for grammars that force a call.

Invariant: what a format writes, the family of the same name in formats/chat parses as the same call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from satchel.errors import RequestError


@dataclass(frozen=True, slots=True)
class JsonArguments:
    """Arguments as one JSON object."""


@dataclass(frozen=True, slots=True)
class KeywordArguments:
    """Arguments as NAME=VALUE in Python's syntax, joined by `separator`."""

    separator: str = ", "


@dataclass(frozen=True, slots=True)
class TagSyntax:
    """Arguments between tags. One argument is: key, its name, value, the value, end, behind. Strings are
    written raw, other values as JSON.
    """

    key: str
    value: str
    end: str
    behind: str = "\n"
    text: str = ""  # replaces `value` before a string, in families that mark strings
    exact: bool = False  # everything between the tags is the value, white space included
    text_end: str = ""  # replaces `end` after a string
    separator: str = ""  # between two arguments

    @property
    def close(self) -> str:
        """The closing tag, which no string may contain."""
        return (self.text_end or self.end).strip()


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """Format of a family's tool calls. One call is: before, name, middle, arguments, after. All calls stand
    between `open` and `close`, joined by `separator`. The texts include the family's markers.
    """

    before: str
    middle: str
    after: str
    open: str = ""
    separator: str = ""
    close: str = ""
    arguments: JsonArguments | KeywordArguments | TagSyntax = JsonArguments()
    numbered: bool = False  # a colon and a number follow the name
    repeated: bool = False  # calls follow each other without a separator

    @property
    def several(self) -> bool:
        """Whether an answer can hold more than one call."""
        return bool(self.separator or self.close or self.repeated)


def _listed(begin: str, end: str = "") -> ToolCallFormat:
    return ToolCallFormat('{"name": "', '", "arguments": ', "}", f"{begin}[", ", ", f"]{end}")


def _invoked(begin: str, end: str, prefix: str, typed: bool) -> ToolCallFormat:
    """typed: a parameter's tag states whether its value is a string."""
    value = '" string="false">' if typed else '">'
    return ToolCallFormat(
        f'<{prefix}invoke name="',
        '">\n',
        f"</{prefix}invoke>\n",
        f"{begin}\n",
        "",
        end,
        TagSyntax(
            f'<{prefix}parameter name="',
            value,
            f"</{prefix}parameter>",
            text='" string="true">' if typed else "",
        ),
    )


def _keywords(begin: str, end: str) -> ToolCallFormat:
    return ToolCallFormat("", "(", ")", f"{begin}[", ", ", f"]{end}", KeywordArguments())


def _lines(begin: str, end: str) -> ToolCallFormat:
    return ToolCallFormat("", "(", ")", f"{begin}\n", "\n", f"\n{end}", KeywordArguments())


def _quoted(begin: str, end: str, quote: str) -> ToolCallFormat:
    tags = TagSyntax("", ":", "", "", text=f":{quote}", text_end=quote, separator=",")
    return ToolCallFormat(f"{begin}call:", "{", "}" + end, close="", separator="\n", arguments=tags)


def _functions(begin: str, end: str) -> ToolCallFormat:
    tags = TagSyntax("<parameter=", ">\n", "\n</parameter>", exact=True)
    return ToolCallFormat(
        f"{begin}\n<function=", ">\n", f"</function>\n{end}", separator="\n", arguments=tags
    )


# By the family's name in formats/chat, then by the marker with which the template begins calls. The first
# format of a family is the default for other markers.
STYLES: Mapping[str, Mapping[str, ToolCallFormat]] = {
    "json": {"": ToolCallFormat('{"name": "', '", "arguments": ', "}", separator="\n")},
    "spoken": {"": ToolCallFormat('{"name": "', '", "arguments": ', "}", '{"tool_calls": [', ", ", "]}")},
    "hermes": {
        "": ToolCallFormat('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", separator="\n"),
    },
    "llama3": {"": ToolCallFormat('{"name": "', '", "parameters": ', "}", separator="; ")},
    "mistral": {
        "": ToolCallFormat('{"name": "', '", "arguments": ', "}", "[TOOL_CALLS][", ", ", "]"),
        "[ARGS]": ToolCallFormat("[TOOL_CALLS]", "[ARGS]", "", repeated=True),
    },
    "deepseek": {
        "": ToolCallFormat(
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁begin｜>",
            "",
            "<｜tool▁calls▁end｜>",
        ),
        "```json": ToolCallFormat(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            "\n```json\n",
            "\n```<｜tool▁call▁end｜>",
            "<｜tool▁calls▁begin｜>",
            "\n",
            "<｜tool▁calls▁end｜>",
        ),
    },
    "harmony": {
        "": ToolCallFormat("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "")
    },
    "function_tag": {"": ToolCallFormat("<function=", ">", "</function>")},
    "command_r": {
        "": ToolCallFormat(
            '{"tool_name": "', '", "parameters": ', "}", "<|START_ACTION|>[", ", ", "]<|END_ACTION|>"
        )
    },
    "command_r_plus": {
        "": ToolCallFormat(
            '    {\n        "tool_name": "',
            '",\n        "parameters": ',
            "\n    }",
            "Action: ```json\n[\n",
            ",\n",
            "\n]```",
        )
    },
    "gigachat": {
        "": ToolCallFormat(
            '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "', '", "arguments": ', "}", repeated=True
        )
    },
    "solar": {
        "": ToolCallFormat(
            "<|tool_call:begin|>call_0<|tool_call:name|>",
            "<|tool_call:args|>",
            "<|tool_call:end|>",
            "<|tool_calls|>",
            "",
            "<|calls|>",
        )
    },
    "minicpm": {
        "": ToolCallFormat(
            '<function name="',
            '">',
            "</function>",
            separator="\n",
            arguments=TagSyntax('<param name="', '">', "</param>", behind=""),
        )
    },
    "hunyuan": {
        "": ToolCallFormat(
            "<tool_call:opensource>",
            "<tool_sep:opensource>\n",
            "</tool_call:opensource>\n",
            "<tool_calls:opensource>\n",
            "",
            "</tool_calls:opensource>",
            TagSyntax(
                "<arg_key:opensource>",
                "</arg_key:opensource>\n<arg_value:opensource>",
                "</arg_value:opensource>",
            ),
        )
    },
    "functionary": {"": ToolCallFormat("", "\n", "", separator=">>>")},
    "kimi": {
        "": ToolCallFormat(
            "<|tool_call_begin|>functions.",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
            "<|tool_calls_section_begin|>",
            "",
            "<|tool_calls_section_end|>",
            numbered=True,
        )
    },
    "listed": {
        "<|tool_call|>": _listed("<|tool_call|>"),
        "<TOOLCALL>": _listed("<TOOLCALL>", "</TOOLCALL>"),
        "<tool_calls>": _listed("<tool_calls>", "</tool_calls>"),
        "functools": _listed("functools"),
        "<|function_call|>": ToolCallFormat('{"name": "', '", "arguments": ', "}", "<|function_call|>"),
        "<function_call>": ToolCallFormat(
            '<function_call> {"name": "', '", "arguments": ', "}", separator="\n"
        ),
        "<longcat_tool_call>": ToolCallFormat(
            '<longcat_tool_call>\n{"name": "',
            '", "arguments": ',
            "}\n</longcat_tool_call>",
            separator="\n",
        ),
        "<|action_start|>": ToolCallFormat(
            '<|action_start|><|plugin|>\n{"name": "', '", "arguments": ', "}<|action_end|>", repeated=True
        ),
        "<|tools_prefix|>": ToolCallFormat('{"', '": ', "}", "<|tools_prefix|>[", ", ", "]<|tools_suffix|>"),
    },
    "gemma": {
        "<|tool_call>": _quoted("<|tool_call>", "<tool_call|>", '<|"|>'),
        "<start_function_call>": _quoted("<start_function_call>", "<end_function_call>", "<escape>"),
    },
    "named": {"": ToolCallFormat("", "\n", "")},
    "glm": {
        "": ToolCallFormat(
            "<tool_call>",
            "\n",
            "</tool_call>",
            separator="\n",
            arguments=TagSyntax("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"),
        )
    },
    "qwen_xml": {
        "": _functions("<tool_call>", "</tool_call>"),
        "<seed:tool_call>": _functions("<seed:tool_call>", "</seed:tool_call>"),
    },
    "dsml": {
        "<｜DSML｜function_calls>": _invoked(
            "<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "｜DSML｜", typed=True
        ),
        "<｜DSML｜tool_calls>": _invoked(
            "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", "｜DSML｜", typed=True
        ),
        "<minimax:tool_call>": _invoked("<minimax:tool_call>", "</minimax:tool_call>", "", typed=False),
        "<function_calls>": _invoked("<function_calls>", "</function_calls>", "", typed=False),
    },
    "pythonic": {
        "": _keywords("", ""),
        "<|tool_call_start|>": _keywords("<|tool_call_start|>", "<|tool_call_end|>"),
        "<|python_start|>": _keywords("<|python_start|>", "<|python_end|>"),
        "<function_calls>": _lines("<function_calls>", "</function_calls>"),
        "```tool_code": _lines("```tool_code", "```"),
        "```python": _lines("<|tool_call_start|>\n```python", "```\n<|tool_call_end|>"),
    },
}


def tool_call_format(style: str, begin: str = "") -> ToolCallFormat:
    """Raises RequestError for an unknown style. begin: as in formats.chat.Style."""
    formats = STYLES.get(style)
    if formats is None:
        raise RequestError(f"tools: the style {style!r:.40} is not one of {', '.join(STYLES)}")
    return formats.get(begin) or next(iter(formats.values()))
