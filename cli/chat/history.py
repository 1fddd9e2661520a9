"""A conversation as a value, and the JSON file in which it is saved.

Turns alternate, the user's first. A loaded file is untrusted: each of its faults gives a one-line error.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from satchel.errors import RequestError
from satchel.formats.gguf.atomic import replace_files
from satchel.runtime.api.generate_options import GenerateOptions
from satchel.runtime.option import options_of
from satchel.runtime.sampling import NAMES, Sampling
from satchel.runtime.sampling import WHOLE as WHOLE_NAMES

KIND, VERSION = "satchel-conversation", 1
ROLES = ("user", "assistant")
LARGEST = 64 << 20  # bytes of a file that is read
SETTINGS = (*NAMES, "max_tokens")
WHOLE = (*WHOLE_NAMES, "max_tokens")  # settings that are integers


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message of the user or the assistant."""

    role: str
    content: str
    stopped: bool = False  # the user interrupted the answer


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """The settings of a chat that /set changes."""

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = -1

    def value(self, name: str) -> float | int | None:
        found: float | int | None = self.max_tokens if name == "max_tokens" else getattr(self.sampling, name)
        return found

    def with_value(self, name: str, value: object) -> ChatSettings:
        """The settings with one value changed. RequestError where it has the wrong type or is
        out of range.
        """
        whole = name in WHOLE
        if name == "seed" and value is None:
            return replace(self, sampling=replace(self.sampling, seed=None))
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise RequestError(f"{name}: expected {'a whole number' if whole else 'a number'}, got {value!r}")
        if name != "max_tokens":
            return replace(self, sampling=replace(self.sampling, **{name: value}))  # type: ignore[arg-type]
        options_of(GenerateOptions)["max_tokens"].check(value)
        return replace(self, max_tokens=value)

    def facts(self) -> dict[str, float | int | None]:
        return {name: self.value(name) for name in SETTINGS}


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation with its settings: everything that /save keeps."""

    model: str = ""
    system: str = ""
    turns: tuple[ChatMessage, ...] = ()
    settings: ChatSettings = field(default_factory=ChatSettings)

    def messages(self, forgotten: int = 0) -> list[dict[str, str]]:
        """The messages as chat templates read them, without so many turns after the system prompt."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return first + [{"role": turn.role, "content": turn.content} for turn in self.turns[forgotten:]]


def save(conversation: Conversation, path: Path) -> None:
    """Writes the file atomically. RequestError where the path exists and is not a saved conversation."""
    if path.exists():
        try:
            load(path)
        except RequestError:
            raise RequestError(
                f"{path}: is there already and is no saved conversation; choose another name"
            ) from None
    turns = [
        {"role": t.role, "content": t.content, **({"stopped": True} if t.stopped else {})}
        for t in conversation.turns
    ]
    facts = {
        "kind": KIND,
        "version": VERSION,
        "model": conversation.model,
        "system": conversation.system,
        "settings": conversation.settings.facts(),
        "messages": turns,
    }
    data = json.dumps(facts, ensure_ascii=False, indent=2).encode() + b"\n"

    def fill(file: IO[bytes]) -> None:
        file.write(data)

    replace_files([(path, fill)])


def load(path: Path) -> Conversation:
    """Reads a saved conversation. RequestError names the invalid field."""
    found = _parsed(path)
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise RequestError(f"{path}: is no conversation that /save wrote")
    if found.get("version") != VERSION:
        raise RequestError(f"{path}: version: expected {VERSION}, got {_short(found.get('version'))}")
    try:
        return Conversation(
            model=_text(found, "model"),
            system=_text(found, "system"),
            turns=_turns(found.get("messages")),
            settings=_settings(found.get("settings")),
        )
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from None


def _parsed(path: Path) -> Any:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise RequestError(f"{path}: expected a file, got something else")
        if status.st_size > LARGEST:
            raise RequestError(
                f"{path}: {status.st_size:,} bytes are too many: a conversation has at most {LARGEST:,}"
            )
        return json.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror or error}") from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # of the encoding, the JSON, a number without end, or the depth
        raise RequestError(f"{path}: is no JSON: {str(error)[:200]}") from None


def _text(values: Mapping[str, Any], key: str, where: str = "") -> str:
    found = values.get(key)
    if not isinstance(found, str):
        raise RequestError(f"{where}{key}: expected text, got {_short(found)}")
    try:
        found.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{where}{key}: half of a surrogate pair at character {error.start}") from None
    return found


def _turns(found: object) -> tuple[ChatMessage, ...]:
    if not isinstance(found, list):
        raise RequestError(f"messages: expected a list, got {_short(found)}")
    turns = tuple(_turn(entry, f"messages[{i}]", ROLES[i % 2]) for i, entry in enumerate(found))
    if len(turns) % 2:
        raise RequestError(f"messages: the last of {len(turns)} has no answer")
    return turns


def _turn(entry: object, where: str, role: str) -> ChatMessage:
    if not isinstance(entry, dict):
        raise RequestError(f"{where}: expected an object, got {_short(entry)}")
    if entry.get("role") != role:
        raise RequestError(f"{where}.role: expected {role!r}, got {_short(entry.get('role'))}")
    stopped = entry.get("stopped", False)
    if not isinstance(stopped, bool):
        raise RequestError(f"{where}.stopped: expected true or false, got {_short(stopped)}")
    return ChatMessage(role, _text(entry, "content", f"{where}."), stopped)


def _settings(found: object) -> ChatSettings:
    if not isinstance(found, dict):
        raise RequestError(f"settings: expected an object, got {_short(found)}")
    settings = ChatSettings()
    for name, value in found.items():
        if name not in SETTINGS:
            raise RequestError(f"settings: {_short(name)} is no setting; there are {', '.join(SETTINGS)}")
        settings = settings.with_value(name, value)
    return settings


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
