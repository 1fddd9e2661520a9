"""Detects what a template supports: renders tiny conversations and searches the output for their words.

Invariant: each probe is rendered once, at its first use. A limit that a probe exceeds is an error, not a
result.
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
# Forms of a call's arguments. KINDS has those of the content beside a call.
_FORMS: dict[str, Any] = {"object": _OBJECT, "text": json.dumps(_OBJECT)}
# Other names of the variable `tools` in templates (SmolLM3 has xml_tools). Phi 4 mini reads the tools from
# the system message.
TOOL_NAMES = frozenset(("xml_tools", "custom_tools", "available_tools"))
SYSTEM = "system message"
BESIDE = "beside a system message"
KINDS: dict[str, Any] = {"none": None, "empty": ""}


def _calling(arguments: Any, content: Any, result: str = "probe") -> list[Message]:
    """A user message, a tool call and its result. Ids have nine letters and digits, as Mistral's require."""
    function = {"name": "called_tool", "arguments": arguments}
    call = {"id": "probe0001", "type": "function", "function": function}
    answer = {"role": "tool", "tool_call_id": "probe0001", "name": "called_tool", "content": result}
    return [_USER, {"role": "assistant", "content": content, "tool_calls": [call]}, answer]


class Probes:
    """A compiled template with the cached results of its probes."""

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
        """Renders a conversation that is already adapted to the template, which may change lists in it."""
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
        """Whether `needle` is in the output, with or without tools: a template for tool use may
        fail without.
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
        """Where the template reads tools: the name of a variable; SYSTEM for the system message's `tools`
        (JSON text); BESIDE for `tools` that are written with a system message only; "" for nowhere.
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
            # Quotes around the text mean that the template printed the list itself.
            printed = any(self._reaches(typed, f"{quote}{_NEEDLE}{quote}") for quote in "'\"")
            return self._reaches(typed, _NEEDLE) and not printed

        return bool(self._once("parts", probe))

    def reads_parts(self, role: str) -> bool:
        """Whether a list of parts in a message of this role renders to the same text as a plain string."""

        def compare() -> bool:
            plain, typed = (
                self._attempt(_around(role, content)) or self._attempt(_around(role, content), [_TOOL])
                for content in (_NEEDLE, [{"type": "text", "text": _NEEDLE}])
            )
            return plain != "" and plain == typed

        return self.wants_parts() or bool(self._once(f"parts of {role}", compare))

    def names_developer(self) -> bool:
        """Whether the template names the developer role and renders its message."""
        return "developer" in self.program.strings and self.shows_role("developer", first=True)

    def shows_role(self, role: str, first: bool) -> bool:
        """Whether a system or developer message reaches the prompt, as the first message or as a
        later one.
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
        """The required form of a call: (arguments, content), with arguments 'object', 'text' or 'any', and
        content 'none', 'empty' or 'any'. ('', '') where calls don't reach the prompt in any form.
        """
        return self._once("calls", self._find_call_form)  # type: ignore[no-any-return]

    def _find_call_form(self) -> tuple[str, str]:
        self.names_by_id()
        shown = {(f, k): self._call(_FORMS[f], KINDS[k]) for f in _FORMS for k in KINDS}
        # 'called_key' is a dict printed by Python instead of JSON; \"called_key\" is JSON text that was
        # dumped as JSON again.
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
        """Whether a call with text beside it reaches the prompt."""
        arguments = _FORMS.get(self.call_form()[0], _OBJECT)
        return bool(self._once("beside", lambda: "called_tool" in self._call(arguments, "probe words")))

    def _call(self, arguments: Any, content: Any) -> str:
        """The first output that shows the call: of a call with its result, then (for templates that require
        it) of the call as the last message. The result carries no name here, so the tool's name can come from
        the call only.
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
        """Whether a call's name reaches the prompt only as part of its id, as `call_id` writes it."""

        def probe() -> bool:
            forms = [(a, c) for a in _FORMS.values() for c in KINDS.values()]
            return not any(self._call(*form) for form in forms) and any(
                "called_tool" in self._call_by_id(*form) for form in forms
            )

        self._by_id = bool(self._once("ids", probe))
        return self._by_id

    def _call_by_id(self, arguments: Any, content: Any) -> str:
        """The output for a call without its result, whose id contains the tool's name."""
        user, called, _ = _calling(arguments, content)
        called["tool_calls"][0]["id"] = call_id("called_tool", 0)
        return self._attempt([user, called])


def call_id(name: str, number: int) -> str:
    """A call id that contains the tool's name, in Kimi K2's format."""
    return f"functions.{name}:{number}"


def _one(found: Sequence[str]) -> str:
    return found[0] if len(found) == 1 else "any"


def _around(role: str, content: Any) -> list[Message]:
    """The shortest conversation with a message of this role."""
    message = {"role": role, "content": content}
    if role in ("system", "developer"):
        return [message, _USER]
    if role == "assistant":
        return [_USER, message]
    if role == "tool":
        return _calling(_OBJECT, "", content)
    return [message]
