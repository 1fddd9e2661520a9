"""The file of `satchel doctor --report`: what an issue needs to know of a machine. It has no secrets, and no
prompts or answers unless they are asked for.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from satchel.errors import RequestError, SatchelError
from satchel.formats.gguf.atomic import replace_files, write_all

LINES = 200  # of the log
LARGEST = 1 << 26  # bytes of a log or a request that are read
LEFT_OUT, SET = "(left out)", "(set)"
VARIABLES = re.compile(
    r"SATCHEL_|LLAMA_|HF_|HUGGING_FACE|OLLAMA_|CUDA_|NVIDIA_|HIP_|ROCR_|OMP_|.*_PROXY$", re.I
)
SECRET = re.compile(r"key|token|secret|passw|auth|credential|cookie", re.I)
PLAIN = re.compile(r"key-?file|cert-?file|chars_per_token|max_tokens|prefill-?tokens", re.I)
TEXTS = re.compile(
    r"prompt|messages|content|text|^answers$|^logprobs$|thinking|reasoning_end|budget.message", re.I
)
PATTERNS = (
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s@\"']+@", re.I), r"\1(redacted)@"),  # user and password
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s?\"'<>]*)[?][^\s\"'<>]*", re.I), r"\1?(redacted)"),  # a query
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]+", re.I), r"\1 (redacted)"),
    (re.compile(r"\b(hf|ghp|gho|github_pat|glpat|xox[abp])[-_]\w[\w-]{7,}"), "(redacted)"),
    (re.compile(r"\b(sk|pk|rk)-[\w-]{8,}"), "(redacted)"),
    (re.compile(r"\bAKIA[0-9A-Z]{12,}"), "(redacted)"),
    (re.compile(r"\beyJ[\w-]{8,}(\.[\w-]*){0,2}"), "(redacted)"),  # a JSON web token
    (re.compile(r"-----BEGIN [^-]*PRIVATE KEY-----.*?(-----END [^-]*-----|\Z)", re.S), "(redacted)"),
    (
        re.compile(
            r"([\w-]*(?:api[-_]?key|admin[-_]?key|token|secret|passw(?:or)?d|authorization)\b"
            r"[\"']?\s*[=: ]\s*)(?![\"']?\(|\d+\b)[\"']?[^\s\"',;]+[\"']?",
            re.I,
        ),
        r"\1(redacted)",
    ),
)


@dataclass(frozen=True, slots=True)
class IssueReport:
    """What goes into the file beside the checks."""

    path: Path
    force: bool = False  # replace the file
    log: Path | None = None  # the server's saved log
    request: Path | None = None  # what `satchel run --json --report` printed; None: a request of its own
    prompts: bool = False

    def check(self) -> None:
        """Raises RequestError where the file is there already, OSError where one that it needs is missing."""
        if self.path.exists() and not self.force:
            raise RequestError(f"{self.path}: is there already; --force replaces it")
        for source in (self.log, self.request):
            if source is not None:
                source.open("rb").close()

    def write(self, system: Mapping[str, str], checks: Iterable[str]) -> None:
        """Writes the file. RequestError where it cannot be written, or has come meanwhile."""
        path, values = _configuration()
        sections = {
            "Machine and versions": [f"{key}: {value}" for key, value in system.items()],
            "Checks": list(checks),
            "Environment": list(self._environment()),
            "Configuration": list(self._configured(path, values)),
            f"Last lines of the log ({self.log or 'none given: --log FILE'})": self._log(),
            "A request's report": self._request().split("\n"),
        }
        parts = [
            "\n".join([f"## {title}\n", "```", *(lines or ["none"]), "```\n"])
            for title, lines in sections.items()
        ]
        text = redacted("\n".join(["# Satchel report\n", *parts]), _secrets(values))
        self.check()
        replace_files([(self.path, lambda file: write_all(file, text.encode("utf-8", "replace")))])

    def _environment(self) -> Iterator[str]:
        for name, value in sorted(os.environ.items()):
            if VARIABLES.match(name):
                yield f"{name}={self._value(name, value)}"

    def _configured(self, path: Path | None, values: Any) -> Iterator[str]:
        if path is not None:
            yield f"file: {path}"
            kept = self._value("", values)
            text = kept if isinstance(kept, str) else json.dumps(kept, indent=2, default=str)
            yield from text.split("\n")

    def _value(self, name: str, value: Any) -> Any:
        """A value without what its name says is secret or a text of the user."""
        if isinstance(value, dict):
            return {key: self._value(key, inner) for key, inner in value.items()}
        number = isinstance(value, bool | int | float)
        if _is_secret(name) and not number:
            return SET if value else value
        if TEXTS.search(name) and not self.prompts and not number:
            return LEFT_OUT
        return [self._value("", inner) for inner in value] if isinstance(value, list) else value

    def _log(self) -> list[str]:
        """The last lines of the log. Those of DEBUG may have texts of prompts."""
        if self.log is None:
            return []
        lines = _read(self.log).splitlines()[-LINES:]
        return lines if self.prompts else [line for line in lines if "debug" not in line.lower()]

    def _request(self) -> str:
        if self.request is None:
            found = _own_request()
        else:
            try:
                found = json.loads(_read(self.request))
            except (ValueError, RecursionError) as error:
                expected = "expected what `satchel run --json --report` prints"
                raise RequestError(f"{self.request}: {expected}: {error}") from None
        return json.dumps(self._value("", found), indent=2, ensure_ascii=False)


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without these secrets, without what looks like a secret, and with ~ for the home folder."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "(redacted)")
    for pattern, instead in PATTERNS:
        text = pattern.sub(instead, text)
    home = str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text


def _configuration() -> tuple[Path | None, Any]:
    """The configuration file and its values, or the text that says why it cannot be read."""
    from satchel.cli.config import find, read

    path = find()
    try:
        return path, read(path) if path else {}
    except RequestError as error:
        return path, str(error)


def _secrets(configuration: Any) -> set[str]:
    """The values of this process's variables and of the configuration that are secret by their names."""
    found = {value for name, value in os.environ.items() if _is_secret(name)}
    found |= set(_secret_values("", configuration))
    parts = {part.strip() for value in found for part in value.split(",")}
    return {value for value in found | parts if len(value) >= 4}


def _secret_values(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _secret_values(key, inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _secret_values(name, inner)
    elif isinstance(value, str) and _is_secret(name):
        yield value


def _is_secret(name: str) -> bool:
    return bool(SECRET.search(name)) and not PLAIN.search(name)


def _own_request() -> Any:
    """The report of a small request to the bundled model, or why there is none."""
    from satchel.cli.reports import plain_values
    from satchel.runtime.api.model import Model
    from satchel.runtime.sampling import GREEDY
    from satchel.store.resolve import default_model

    try:
        with Model.load(default_model(), context=64) as model:
            reply = model.chat([{"role": "user", "content": "Hello!"}], max_tokens=4, sampling=GREEDY)
            reply.read()
            return plain_values(reply.report.as_dict())
    except (SatchelError, OSError) as error:
        return {"error": str(error)}


def _read(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LARGEST))
        return file.read().decode("utf-8", "replace")
