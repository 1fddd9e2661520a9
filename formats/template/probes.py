"""Finds out what a template understands by rendering tiny conversations and looking for their words.

Invariant: each question is rendered once, when first asked; a limit that is reached there is an error, not an
answer.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from satchel.errors import RequestError
from satchel.formats.template.messages import Escape, Message
from satchel.formats.template.sandbox import CompiledTemplate

_NEEDLE = "probe-needle"
_USER: Message = {"role": "user", "content": "probe-of-user"}
_TOOL: Message = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "probe",
        "parameters": {
            "type": "object",
            "properties": {"probe_key": {"type": "string", "description": "probe"}},
        },
    },
}
_OBJECT = {"called_key": "probe"}
# How a call's arguments, and the content beside it, can be given.
_FORMS: dict[str, Any] = {"object": _OBJECT, "text": json.dumps(_OBJECT)}
# Names that templates have for `tools` (SmolLM3's xml_tools), and the place of Phi 4 mini's.
TOOL_NAMES = frozenset(("xml_tools", "custom_tools", "available_tools"))
SYSTEM = "system message"
BESIDE = "beside a system message"
KINDS: dict[str, Any] = {"none": None, "empty": ""}


def _calling(arguments: Any, content: Any, result: str = "probe") -> list[Message]:
    """user, a call, its result. Ids of nine letters and digits: Mistral's templates want them so."""
    function = {"name": "called_tool", "arguments": arguments}
    call = {"id": "probe0001", "type": "function", "function": function}
    answer = {"role": "tool", "tool_call_id": "probe0001", "name": "called_tool", "content": result}
    return [_USER, {"role": "assistant", "content": content, "tool_calls": [call]}, answer]


class Probes:
    """A compiled template with what is known of it."""

    def __init__(
        self, program: CompiledTemplate, tokens: Mapping[str, str], now: Callable[[], datetime]
    ) -> None:
        self.program = program
        self._tokens, self._now = tokens, now
        self._known: dict[str, Any] = {}
        self._by_id = False

    def run(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] | None,
        more: Mapping[str, Any],
        nodes: int,
        characters: int,
        escape: Escape | None,
    ) -> str:
        """The template's text of a conversation that is already in its form; lists in it may be changed."""
        variables = {**self._tokens, "documents": None, **more, "messages": messages, "tools": tools}
        return self.program.run(variables, nodes, characters, self._now, escape)

    def _attempt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> str:
        try:
            own = copy.deepcopy((messages, tools, {"add_generation_prompt": True, **(more or {})}))
            return self.run(*own, 0, 2000, None)
        except RequestError:
            return ""

    def _reaches(self, messages: Sequence[Message], needle: str) -> bool:
        """Whether the template writes `needle`, if need be with tools: templates for tool use may fail
        without.
        """
        return needle in self._attempt(messages) or needle in self._attempt(messages, [_TOOL])

    def _once(self, question: str, answer: Callable[[], Any]) -> Any:
        if question not in self._known:
            self._known[question] = answer()
        return self._known[question]

    def _content(self, text: str) -> Any:
        return [{"type": "text", "text": text}] if self.wants_parts() else text

    def shows_tools(self) -> bool:
        """Whether tools reach the prompt."""
        if "tools" not in self.program.names:
            return False
        user = {**_USER, "content": self._content(_NEEDLE)}
        return bool(self._once("tools", lambda: "probe_tool" in self._attempt([user], [_TOOL])))

    def tools_place(self) -> str:
        """Where a template has its place for tools: a variable's name, SYSTEM for a member of the system
        message (JSON text), BESIDE for `tools`, but shown with a system message only, or "" for none.
        """
        return "tools" if self.shows_tools() else str(self._once("place of tools", self._find_tools_place))

    def _find_tools_place(self) -> str:
        user = {**_USER, "content": self._content(_NEEDLE)}
        for name in sorted(TOOL_NAMES & self.program.names):
            if "probe_tool" in self._attempt([user], more={name: [_TOOL]}):
                return name
        system = {
            "role": "system",
            "content": self._content("probe"),
            "tools": json.dumps([_TOOL["function"]]),
        }
        if "probe_tool" in self._attempt([system, user]):
            return SYSTEM
        plain = {key: value for key, value in system.items() if key != "tools"}
        return BESIDE if "probe_tool" in self._attempt([plain, user], [_TOOL]) else ""

    def wants_parts(self) -> bool:
        """Whether content must be a list of parts: a plain string would be left out."""

        def probe() -> bool:
            if self._reaches([{**_USER, "content": _NEEDLE}], _NEEDLE):
                return False
            typed = [{**_USER, "content": [{"type": "text", "text": _NEEDLE}]}]
            # A list that is printed as a whole has quotes around its text.
            printed = any(self._reaches(typed, f"{quote}{_NEEDLE}{quote}") for quote in "'\"")
            return self._reaches(typed, _NEEDLE) and not printed

        return bool(self._once("parts", probe))

    def reads_parts(self, role: str) -> bool:
        """Whether a list of parts, in a message of this role, gives the same text as the string it holds."""

        def compare() -> bool:
            plain, typed = (
                self._attempt(_around(role, content)) or self._attempt(_around(role, content), [_TOOL])
                for content in (_NEEDLE, [{"type": "text", "text": _NEEDLE}])
            )
            return plain != "" and plain == typed

        return self.wants_parts() or bool(self._once(f"parts of {role}", compare))

    def names_developer(self) -> bool:
        """Whether the template knows the developer role by name and shows its message."""
        return "developer" in self.program.strings and self.shows_role("developer", first=True)

    def shows_role(self, role: str, first: bool) -> bool:
        """Whether a system or developer message reaches the prompt: as the first message, or between later
        ones.
        """

        def probe() -> bool:
            before = [] if first else [_USER, {"role": "assistant", "content": "probe-of-assistant"}]
            messages = [*before, {"role": role, "content": _NEEDLE}, _USER]
            return self._reaches([{**m, "content": self._content(m["content"])} for m in messages], _NEEDLE)

        return bool(self._once(f"{role} {'first' if first else 'later'}", probe))

    def shows_results(self) -> bool:
        """Whether the result of a tool reaches the prompt."""

        def probe() -> bool:
            forms = [(a, c) for a in _FORMS.values() for c in KINDS.values()]
            return any(self._reaches(_calling(a, c, _NEEDLE), _NEEDLE) for a, c in forms)

        return bool(self._once("results", probe))

    def call_form(self) -> tuple[str, str]:
        """(arguments, content) as a call must have them: 'object', 'text' or 'any'; 'none', 'empty' or 'any'.

        ('', '') means that calls don't reach the prompt in any form.
        """
        return self._once("calls", self._find_call_form)  # type: ignore[no-any-return]

    def _find_call_form(self) -> tuple[str, str]:
        self.names_by_id()
        shown = {(f, k): self._call(_FORMS[f], KINDS[k]) for f in _FORMS for k in KINDS}
        # Python's ' around the key is a dict that was meant to be JSON; \" is JSON text dumped as JSON once
        # more.
        objects = [
            k
            for k in KINDS
            if "called_key" in shown["object", k] and "'called_key'" not in shown["object", k]
        ]
        texts = [k for k in KINDS if '"called_key":' in shown["text", k]]
        if objects and texts and shown["object", objects[0]] == shown["text", texts[0]]:
            return "any", _one(objects)
        if objects or texts:
            return ("object", _one(objects)) if objects else ("text", _one(texts))
        names_only = [k for k in KINDS if "called_tool" in shown["object", k]]
        return ("any", _one(names_only)) if names_only else ("", "")

    def shows_call_beside_text(self) -> bool:
        """Whether a call that has text beside it reaches the prompt."""
        arguments = _FORMS.get(self.call_form()[0], _OBJECT)
        return bool(self._once("beside", lambda: "called_tool" in self._call(arguments, "probe words")))

    def _call(self, arguments: Any, content: Any) -> str:
        """A call with its result, alone, or (for templates that check the roles) last: what shows the call.

        The result names the tool as well, so a text without the called key or the call's own place does not
        count.
        """
        messages = _calling(arguments, content)
        bare = [{k: v for k, v in m.items() if k != "name"} for m in messages]
        for attempt in (bare, bare[:-1]):
            for tools in (None, [_TOOL]):
                text = self._attempt(attempt, tools)
                if "called_tool" in text:
                    return text
        return self._call_by_id(arguments, content) if self._by_id else ""

    def names_by_id(self) -> bool:
        """Whether a call's name reaches the prompt as part of its id alone: `call_id` says how it is then."""

        def probe() -> bool:
            forms = [(a, c) for a in _FORMS.values() for c in KINDS.values()]
            return not any(self._call(*form) for form in forms) and any(
                "called_tool" in self._call_by_id(*form) for form in forms
            )

        self._by_id = bool(self._once("ids", probe))
        return self._by_id

    def _call_by_id(self, arguments: Any, content: Any) -> str:
        """A call, without its result, whose id has the tool's name."""
        user, called, _ = _calling(arguments, content)
        called["tool_calls"][0]["id"] = call_id("called_tool", 0)
        return self._attempt([user, called])


def call_id(name: str, number: int) -> str:
    """An id with the name in it, as Kimi K2 writes it."""
    return f"functions.{name}:{number}"


def _one(found: Sequence[str]) -> str:
    return found[0] if len(found) == 1 else "any"


def _around(role: str, content: Any) -> list[Message]:
    """The shortest conversation that holds a message of this role."""
    message = {"role": role, "content": content}
    if role in ("system", "developer"):
        return [message, _USER]
    if role == "assistant":
        return [_USER, message]
    if role == "tool":
        return _calling(_OBJECT, "", content)
    return [message]
