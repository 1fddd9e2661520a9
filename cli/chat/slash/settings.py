"""/set: sampling, reasoning, and display settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from satchel.cli.chat.display import DIM
from satchel.cli.chat.history import SETTINGS, WHOLE, ChatSettings
from satchel.cli.chat.registry import COMMANDS, command
from satchel.cli.chat.session import Session
from satchel.cli.replies import SWITCHES
from satchel.errors import RequestError
from satchel.errors.spelling import did_you_mean

Value = float | int | str | bool | None
ON_OFF = {"on": True, "off": False, "true": True, "false": False}
OTHER_NAMES = {
    "temp": "temperature",
    "n": "max_tokens",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "think": "reasoning",
}
# Ollama's settings, translated.
HABITS = {
    "think": "reasoning on",
    "nothink": "reasoning off",
    "verbose": "verbose on",
    "quiet": "verbose off",
    "noformat": "format none",
}


def _reasoning(session: Session, given: str) -> None:
    """auto, on, off, an effort such as low, or a budget of thinking tokens."""
    if not (given.isalpha() or given.isdecimal()):
        raise RequestError(f"reasoning: expected auto, on, off, a word or a number of tokens, got {given!r}")
    value: bool | int | str | None = int(given) if given.isdecimal() else given
    session.how = replace(session.how, reasoning=SWITCHES.get(given, value))


def _stop(session: Session, given: str) -> None:
    """Adds a stop string; none removes all."""
    stop = () if given == "none" else (*session.how.stop, given)
    session.how = session.how.with_stop(stop)


def _verbose(session: Session, given: str) -> None:
    """Timings after each answer."""
    session.verbose = _switch("verbose", given)


def _markdown(session: Session, given: str) -> None:
    """Whether answers are rendered as Markdown."""
    session.markdown = _switch("markdown", given)


def _format(session: Session, given: str) -> None:
    """json: answers are JSON objects; none: any text."""
    if given not in ("json", "none"):
        raise RequestError(f"format: expected json or none, got {given[:40]!r}")
    from satchel.cli.grammars import check_spec
    from satchel.runtime.grammar import AnyJson

    spec = AnyJson() if given == "json" else None
    if spec is not None:
        check_spec(session.model, spec)
    session.how = replace(session.how, grammar=spec)


OTHERS: dict[str, tuple[Callable[[Session], Value], Callable[[Session, str], None], tuple[str, ...]]] = {
    "reasoning": (lambda s: s.how.reasoning, _reasoning, ("auto", "on", "off")),
    "stop": (lambda s: ", ".join(map(repr, s.how.stop)) or "none", _stop, ("none",)),
    "verbose": (lambda s: s.verbose, _verbose, ("on", "off")),
    "markdown": (lambda s: s.markdown, _markdown, ("on", "off")),
    "format": (lambda s: "none" if s.how.grammar is None else _grammar_name(s), _format, ("json", "none")),
}


def _words() -> Iterator[str]:
    """The completions of /set."""
    yield from (f"{name} " for name in SETTINGS)
    for name, (_, _, values) in OTHERS.items():
        yield from (f"{name} {value}" for value in values)


@command("set", "[NAME VALUE]", words=_words)
def _set(session: Session, text: str) -> None:
    """Show or change how answers are drawn and shown."""
    if not text:
        for name, value in session.settings.facts().items():
            session.say(f"  {name:<20} {_shown(value, name)}")
        for name, (read, _, _) in OTHERS.items():
            session.say(f"  {name:<20} {_shown(read(session), name)}")
        return
    text = text.removeprefix("parameter ").strip()
    name, _, given = HABITS.get(text, text).partition(" ")
    name = name.lstrip("-").replace("-", "_")
    name, given = OTHER_NAMES.get(name, name), given.strip()
    if name == "system":
        COMMANDS["system"].run(session, given)
        return
    if name not in SETTINGS and name not in OTHERS:
        known = (*SETTINGS, *OTHERS)
        hint = did_you_mean(name, known) or f"there are {', '.join(known)}"
        raise RequestError(f"no setting {name}; {hint}")
    old = _read(session, name)
    if not given:
        session.say(f"{name} {_shown(old, name)}", DIM)
        return
    if name in OTHERS:
        OTHERS[name][1](session, given)
    else:
        changed = with_text(session.settings, name, given)
        session.conversation = replace(session.conversation, settings=changed)
    arrow = "→" if session.look.unicode else "->"
    session.say(f"{name} {_shown(old, name)} {arrow} {_shown(_read(session, name), name)}", DIM)


def with_text(settings: ChatSettings, name: str, given: str) -> ChatSettings:
    """The settings with a typed value. A seed of -1 or "random" means a new one for each answer."""
    if name == "seed" and given in ("-1", "random"):
        return settings.with_value(name, None)
    try:
        value = int(given) if name in WHOLE else float(given)
    except ValueError:
        kind = "a whole number" if name in WHOLE else "a number"
        raise RequestError(f"{name}: expected {kind}, got {given[:40]!r}") from None
    return settings.with_value(name, value)


def _read(session: Session, name: str) -> Value:
    return OTHERS[name][0](session) if name in OTHERS else session.settings.value(name)


def _switch(name: str, given: str) -> bool:
    if given not in ON_OFF:
        raise RequestError(f"{name}: expected on or off, got {given[:40]!r}")
    return ON_OFF[given]


def _grammar_name(session: Session) -> str:
    name = type(session.how.grammar).__name__.lower()
    return name if name == "json" else f"{name}, as the command line says"


def _shown(value: Value, name: str) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "auto" if name == "reasoning" else "random"
    return f"{value:g}" if isinstance(value, float) else str(value)
