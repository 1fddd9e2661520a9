"""{"name": ..., "parameters": ...} as the whole answer, or <|python_tag|> before it: Llama 3.x and 4. Some of
their answers are lists of such objects (xLAM too), or of Python's calls.
"""

from __future__ import annotations

from satchel.formats.chat.calls import Keys, bare, call, dumped, listed
from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import AnswerReader, Malformed, Steps
from satchel.formats.chat.tagged import python_calls, python_listed

KEYS = Keys(arguments=("parameters", "arguments"), known=True)
TAG, START, END = "<|python_tag|>", "<|python_start|>", "<|python_end|>"
INTERPRETERS = ("code_interpreter", "python", "ipython")
MARKED = Keys(arguments=("parameters", "arguments"))


def grammar(reader: AnswerReader, begin: str) -> Steps[None]:
    if begin == TAG:
        yield from _tagged(reader)
    elif (yield from reader.skip()) and reader.peek() == "[":
        yield from _listed(reader)
    else:
        yield from bare(reader, KEYS)
    if begin == START:
        yield from reader.at(END)


def _tagged(reader: AnswerReader) -> Steps[None]:
    if (yield from reader.skip()) and reader.peek() == "{":
        yield from call(reader, MARKED)
    else:
        yield from _python(reader)


def _listed(reader: AnswerReader) -> Steps[None]:
    """Reads a list of objects or of Python calls; the character after the bracket decides."""
    bracket = reader.take(1)
    if (yield from reader.skip()) and reader.peek() == "{":
        yield from listed(reader, KEYS)
    else:
        yield from python_listed(reader, bracket, known=True)


def _python(reader: AnswerReader) -> Steps[None]:
    """Reads name.call(key="value"), or code where an interpreter is among the tools."""
    text, _ = yield from reader.text_until("<|eom_id|>", "<|eot_id|>")
    interpreter = next((name for name in INTERPRETERS if name in reader.tools), "")
    name, dot, _ = text.partition(".call(")
    if dot and name.isidentifier() and name != interpreter:
        found = python_calls(text)
    elif interpreter:
        found = [("", dumped({"code": text}))]
    else:
        raise Malformed(f"code came, and no tool of {', '.join(INTERPRETERS)} is there")
    for called, arguments in found:
        yield reader.begin(called.removesuffix(".call") or interpreter)
        yield reader.arguments(arguments)
        yield reader.end()


FAMILY = Family(
    (TAG, START), grammar, marks=(END, "<|eom_id|>", "<|eot_id|>"), bare=True, opens="{[", order=5
)
