"""{"name": ..., "parameters": ...} as the whole answer, or <|python_tag|> before it: Llama 3.x."""

from __future__ import annotations

from satchel.formats.chat.calls import Keys, bare, call, dumped
from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import Malformed, Reader, Steps
from satchel.formats.chat.tagged import python_calls

KEYS = Keys(arguments=("parameters", "arguments"), known=True)
TAG, FUNCTION = "<|python_tag|>", "<function="
INTERPRETERS = ("code_interpreter", "python", "ipython")
MARKED = Keys(arguments=("parameters", "arguments"))


def grammar(reader: Reader, begin: str) -> Steps[None]:
    if begin == "":
        yield from bare(reader, KEYS)
        return
    if (yield from reader.skip()) and reader.peek() == "{":
        yield from call(reader, MARKED)
        return
    yield from _python(reader)


def _python(reader: Reader) -> Steps[None]:
    """name.call(key="value"), or code where the tools have an interpreter."""
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


FAMILY = Family((TAG,), grammar, marks=("<|eom_id|>", "<|eot_id|>"), bare=True, order=5)
