"""The server under test, and the checks' access to it: plain HTTP and the official clients."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from satchel.cli.conformance.expect import Skip, Wrong, expect, parsed, short
from satchel.errors import RequestError

if TYPE_CHECKING:
    import httpx

PATIENCE = 120.0  # timeout of a response, in seconds
QUESTION = [{"role": "user", "content": "Write two sentences about a small town by the sea."}]


@dataclass(frozen=True, slots=True)
class Event:
    """A server-sent event: its name, empty where it has none, and its data."""

    name: str
    data: Any


class ConformanceTarget:
    """The server at a URL. Paths begin with a slash; methods check the status and the content type."""

    def __init__(self, url: str, model: str = "", key: str = "") -> None:
        import httpx

        bare = url.rstrip("/")
        self.url, self.key = bare.removesuffix("/v1"), key
        # No proxy, which would be tested instead of the server.
        self.http = httpx.Client(base_url=self.url, headers=self.headers, timeout=PATIENCE, trust_env=False)
        self.model = model or self._first_model()

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def close(self) -> None:
        self.http.close()

    def _first_model(self) -> str:
        try:
            return str(self.http.get("/v1/models").raise_for_status().json()["data"][0]["id"])
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise RequestError(
                f"{self.url}/v1/models: no list of models ({what}); name one with -m"
            ) from None

    # plain HTTP

    def get(self, path: str) -> Any:
        """The JSON at a path."""
        return answer(self.http.get(path))

    def post(self, path: str, body: Any) -> Any:
        """The JSON response to a POST of this body."""
        return answer(self.http.post(path, json=body))

    def able(self, path: str, body: Any) -> Any:
        """As post(), but skips the check on status 400, where the model does not support it."""
        found = self.http.post(path, json=body)
        if found.status_code == 400:
            raise Skip(f"refused: {short(found.text)}")
        return answer(found)

    def refused(self, path: str, body: Any, status: int = 400) -> Any:
        """The JSON of an error response with this status, which must come."""
        found = self.http.post(path, json=body)
        expect(found.status_code == status, f"POST {path}: expected HTTP {status}, got {said(found)}")
        return parsed(found.text, "the error")

    def events(self, path: str, body: Any) -> list[Event]:
        """All server-sent events of a stream. The data are JSON except for [DONE]."""
        with self.http.stream("POST", path, json=body | {"stream": True}) as found:
            found.read()
        expect(found.status_code == 200, f"POST {path}: expected a stream, got {said(found)}")
        kind = found.headers.get("content-type", "")
        expect(
            kind.startswith("text/event-stream"), f"Content-Type: expected text/event-stream, got {kind!r}"
        )
        return [event(block) for block in blocks(found.content) if not block.startswith(":")]

    def chunks(self, path: str, body: Any) -> list[dict[str, Any]]:
        """The objects of an OpenAI stream, which must end with [DONE]."""
        events = self.events(path, body)
        expect(
            events and events[-1].data == "[DONE]", f"the stream's end: expected [DONE], got {events[-1:]}"
        )
        return [e.data for e in events[:-1]]

    def lines(self, path: str, body: Any) -> list[dict[str, Any]]:
        """The objects of an Ollama stream."""
        found = self.http.post(path, json=body)
        expect(found.status_code == 200, f"POST {path}: expected a stream, got {said(found)}")
        kind = found.headers.get("content-type", "")
        expect("ndjson" in kind, f"Content-Type: expected application/x-ndjson, got {kind!r}")
        return [parsed(line, "a line") for line in found.text.splitlines()]

    # what is asked

    def chat(self, **fields: Any) -> dict[str, Any]:
        """The body of a short greedy chat request, with these fields added or replaced."""
        return {"model": self.model, "messages": QUESTION, "max_tokens": 24, "temperature": 0, **fields}

    def text(self, **fields: Any) -> dict[str, Any]:
        """The body of a short greedy completion."""
        prompt = "Once upon a time there was"
        return {"model": self.model, "prompt": prompt, "max_tokens": 16, "temperature": 0, **fields}

    @functools.cached_property
    def plain(self) -> dict[str, Any]:
        """The response to chat() without other fields, with which checks compare."""
        found = self.post("/v1/chat/completions", self.chat())
        content = found["choices"][0]["message"]["content"]
        expect(isinstance(content, str) and content, f"the answer: expected text, got {short(content)}")
        return found  # type: ignore[no-any-return]

    @property
    def words(self) -> str:
        """The text of the plain answer."""
        return str(self.plain["choices"][0]["message"]["content"])

    @functools.cached_property
    def context(self) -> int:
        """The model's context length, where the server reports it."""
        for path, keys in (("/v1/models", ("data", 0, "meta", "n_ctx")), ("/props", ("n_ctx",))):
            try:
                found: Any = self.http.get(path).json()
                for key in keys:
                    found = found[key]
                return int(found)
            except (ValueError, KeyError, TypeError, IndexError):
                continue
        raise Skip("the server does not tell its context (meta.n_ctx of /v1/models, or n_ctx of /props)")

    # the official clients

    @functools.cached_property
    def openai(self) -> Any:
        return self.openai_client(max_retries=0)

    def openai_client(self, max_retries: int, sent: Callable[[Any], None] | None = None) -> Any:
        """A client of the openai package. sent: called with each request."""
        module = self.official("openai")
        http = module.DefaultHttpxClient(trust_env=False, event_hooks={"request": [sent] if sent else []})
        base, key = f"{self.url}/v1", self.key or "none"
        return module.OpenAI(base_url=base, api_key=key, max_retries=max_retries, http_client=http)

    @functools.cached_property
    def anthropic(self) -> Any:
        module = self.official("anthropic")
        http = module.DefaultHttpxClient(trust_env=False)
        return module.Anthropic(
            base_url=self.url, api_key=self.key or "none", max_retries=0, http_client=http
        )

    @functools.cached_property
    def ollama(self) -> Any:
        module = self.official("ollama")
        return module.Client(host=self.url, headers=self.headers, trust_env=False, timeout=PATIENCE)

    @staticmethod
    def official(name: str) -> Any:
        """Imports an official client's package; skips the check where it is missing."""
        try:
            return importlib.import_module(name)
        except ImportError:
            raise Skip(f"no package {name}: pip install 'satchel[conformance]'") from None


def answer(found: httpx.Response) -> Any:
    if found.status_code != 200:
        raise Wrong(f"{found.request.method} {found.request.url.path}: expected HTTP 200, got {said(found)}")
    return parsed(found.text, "the answer")


def said(found: httpx.Response) -> str:
    return f"{found.status_code} {short(found.text)}"


def blocks(content: bytes) -> list[str]:
    """Parses an event stream. All bytes must be UTF-8, and no line may be outside a block."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Wrong(f"the stream is not UTF-8: {error}") from None
    return [block for block in text.replace("\r\n", "\n").split("\n\n") if block.strip()]


def event(block: str) -> Event:
    name, data = "", []
    for line in block.split("\n"):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
    joined = "\n".join(data)
    if joined == "[DONE]":
        return Event(name, joined)
    try:
        return Event(name, json.loads(joined))
    except ValueError:
        raise Wrong(f"the data of an event are no JSON: {short(joined)}") from None


def raised(kind: Any, call: Any, what: str) -> Any:
    """Calls a function that must raise this exception, and returns the exception."""
    try:
        found = call()
    except kind as error:
        return error
    except Exception as error:
        raise Wrong(f"{what}: expected {kind.__name__}, got {type(error).__name__}: {error}") from None
    raise Wrong(f"{what}: expected {kind.__name__}, got {short(found)}")


def joined(chunks: list[dict[str, Any]], index: int = 0) -> str:
    """The text of one choice of a chat stream."""
    parts = (c["delta"].get("content") for chunk in chunks for c in chunk["choices"] if c["index"] == index)
    return "".join(part or "" for part in parts)
