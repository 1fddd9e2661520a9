"""Detects a template's style: renders a tool call and a thought, and lets each family parse them.

Invariant: a family that is chosen by rendering parses exactly the call that was rendered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from satchel.errors import RequestError
from satchel.formats.chat.events import Collected
from satchel.formats.chat.family import families
from satchel.formats.chat.parser import ChatParser
from satchel.formats.chat.style import PAIRS, Style
from satchel.formats.template import ChatTemplate

Messages = Sequence[Mapping[str, Any]]
SWITCHES = ("enable_thinking", "thinking")
_NAME, _GIVEN = "probe_tool", {"probe_key": "probe value", "probe_count": 3}
_LEAST = {"probe_count": 3}  # what templates write well that leave out commas, or quotes around texts
_USER = {"role": "user", "content": "probe of user"}
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "probe",
        "parameters": {
            "type": "object",
            "properties": {
                "probe_key": {"type": "string", "description": "probe"},
                "probe_count": {"type": "integer", "description": "probe"},
            },
        },
    },
}
_RESULT = {"role": "tool", "tool_call_id": "probe0001", "name": _NAME, "content": "probe"}
_THOUGHT, _SAID = "probe of thought", "probe of answer"
_MARKER = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{1,40}\]")


def detect(template: ChatTemplate, tokens: Collection[str] = ()) -> Style:
    """The style of a template. tokens: the vocabulary's special tokens, used where the template renders no
    call.
    """
    family, begin = _family(template)
    silent = family == "spoken" and template.supports_tools
    trained = _trained(frozenset(tokens), template.source) if silent else None
    family, begin = trained or (family, begin)
    style = Style(
        family=family,
        begin=begin,
        spoken=trained is not None,
        switches=tuple(name for name in SWITCHES if template.reads(name)),
        efforts=template.reads("reasoning_effort"),
    )
    if style.calls and style.calls.thought:
        opening, closing, tail = style.calls.thought
        return _marked(style, opening, closing, ("", "", tail))
    return _thinking(template, style, frozenset(tokens))


def _rendered(
    template: ChatTemplate, messages: Messages, tools: bool, prompt: bool = False, **more: Any
) -> str:
    try:
        return template.render(
            messages, tools=[_TOOL] if tools else None, add_generation_prompt=prompt, variables=more
        )
    except RequestError:
        return ""


def _after(before: str, whole: str) -> str:
    """`whole` without the common prefix of both texts."""
    pairs = enumerate(zip(before, whole, strict=False))
    return whole[next((i for i, (a, b) in pairs if a != b), min(len(before), len(whole))) :]


def _family(template: ChatTemplate) -> tuple[str, str]:
    """The family's name, and the marker of it that the template writes."""
    asked = _rendered(template, [_USER], tools=True)
    # Try markers first: they are more specific than calls without one; of those, the most specific opening
    # first.
    narrow = sorted(families(), key=lambda name: len(families()[name].opens) or len(_NAME))
    ways = [*((name, False) for name in families()), *((name, True) for name in narrow)]
    for given, content in ((_GIVEN, ""), (_GIVEN, None), (_LEAST, ""), (_LEAST, None)):
        call = {"id": "probe0001", "type": "function", "function": {"name": _NAME, "arguments": given}}
        called: dict[str, Any] = {"role": "assistant", "content": content, "tool_calls": [call]}
        for messages in ([_USER, called], [_USER, called, _RESULT]):
            body = _after(asked, _rendered(template, messages, tools=True))
            found = next((n for n, bare in ways if _NAME in body and _reads(n, body, bare, given)), "")
            if found:
                return found, _begin(found, body)
    known = (name for name, f in families().items() if any(b in template.source for b in f.begins))
    found = next(known, "")
    return found, _begin(found, template.source) if found else ""


def _trained(tokens: frozenset[str], source: str) -> tuple[str, str] | None:
    """The family whose markers are tokens of the vocabulary or occur in the template, for a template that
    renders tools but no calls. Of several families, the one with most markers.
    """
    known = {marker for family in families().values() for marker in family.markers if len(marker) > 3}
    tokens |= {marker for marker in known if marker in source}
    held = {name: [b for b in family.begins if b in tokens] for name, family in families().items()}
    counts = {
        name: len(tokens.intersection(families()[name].markers)) for name, begins in held.items() if begins
    }
    best = max(counts, key=counts.__getitem__, default="")
    return (best, held[best][0]) if best else None


def _begin(family: str, text: str) -> str:
    """A text of `tells` that identifies the form of the calls, else the family's first marker in the text."""
    told = next((tell for tell in families()[family].tells if tell in text), "")
    return told or min((b for b in families()[family].begins if b in text), key=text.index, default="")


def _reads(name: str, body: str, bare: bool, given: Mapping[str, Any]) -> bool:
    """Whether the family parses the rendered call correctly. bare: without a marker."""
    family = families()[name]
    starts = [at for begin in family.begins if (at := body.find(begin)) >= 0]
    if bare:
        lead = family.opens or (_NAME,)
        starts = [at for text in lead if (at := body.find(text)) >= 0] if family.bare and not starts else []
    if not starts:
        return False
    parser = ChatParser(Style(family=name), tools=[_TOOL])
    found = Collected().add_all([*parser.feed(body[min(starts) :]), *parser.finish()])
    read = [(call.name, json.loads(call.arguments)) for call in found.tool_calls]
    if given is _LEAST:  # some templates write numbers as strings
        return [(called, {key: str(v) for key, v in values.items()}) for called, values in read] == [
            (_NAME, {key: str(v) for key, v in given.items()})
        ]
    return read == [(_NAME, given)]


def _thinking(template: ChatTemplate, style: Style, tokens: frozenset[str]) -> Style:
    shown = _shown_thought(template, style)
    known = next((pair for pair in PAIRS if pair[1] in template.source), None)
    if shown is None and known:
        shown = replace(style, open=known[0], close=known[1], thinks=True)
    if shown is None:
        held = next((pair for pair in PAIRS if tokens.issuperset(pair)), None)
        return replace(style, open=held[0], close=held[1]) if held else style
    return _spaced(template, shown)


def _shown_thought(template: ChatTemplate, style: Style) -> Style | None:
    """The style with the markers that the template writes around a thought; None if it writes none."""
    before = _rendered(template, [_USER], tools=False)
    message = {"role": "assistant", "content": _SAID, "reasoning_content": _THOUGHT}
    body = _after(before, _rendered(template, [_USER, message], tools=False))
    lead, found, rest = body.partition(_THOUGHT)
    between, said, _ = rest.partition(_SAID)
    if not found or not said:
        return None
    known = next((pair for pair in PAIRS if pair[0] in lead and pair[1] in between), None)
    opens, closes = _MARKER.findall(lead), _MARKER.findall(between)
    opening, closing = known or (opens[-1] if opens else "", closes[0] if closes else "")
    if not opening or not closing:
        return None
    inner, _, tail = between.partition(closing)
    return _marked(style, opening, closing, (lead.rpartition(opening)[2], inner, tail))


def _marked(style: Style, opening: str, closing: str, spaces: tuple[str, str, str]) -> Style:
    lead, between, tail = spaces
    return replace(style, open=opening, close=closing, thinks=True, lead=lead, between=between, tail=tail)


def _spaced(template: ChatTemplate, style: Style) -> Style:
    """The style with the white space beside the markers, from prompts that open the thinking or end it at
    once.
    """
    before = _rendered(template, [_USER], tools=False)
    for value in (False, True):
        more = dict.fromkeys(style.switches, value)
        prompt = _after(before, _rendered(template, [_USER], tools=False, prompt=True, **more))
        _, opened, rest = prompt.rpartition(style.open)
        inner, closed, tail = rest.partition(style.close)
        # Text after a marker: the prompt mentions thinking, but does not begin or end it there.
        if opened and closed and not inner.strip() and not tail.strip():
            middle = len(inner) // 2
            return replace(style, lead=inner[:middle], between=inner[middle:], tail=tail)
        if opened and not rest.strip():
            return replace(style, lead=rest)
    return style
