"""Requests of every route of a server, right and wrong, made of its own OpenAPI document:

    python tests/support/schema_requests.py http://127.0.0.1:8080 [--examples N] [--share N] [--seed N]

The exit status is 1 where one made the server fail; each is printed, as a command of curl where that can be.
The same seed gives the same requests wherever it runs: in a process of its own, for hypothesis takes
constants from whatever modules are imported, and those go by the tests that ran before.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import httpx
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings

SECONDS = 60.0  # for one answer
# They change the server.
LEFT_OUT = ("/config/reload", "/models/unload", "/api/delete", "/api/pull", "/api/copy")
# What no sensible client sends in place of a value, as JSON text: beyond every type, or beyond JSON.
NUMBERS = (
    "NaN -Infinity 1e999 -1e308 1e-320 -0.0 -1 0 1.5 2147483648 9223372036854775808 -9223372036854775809"
)
TEXTS = r'"" "\u0000" "\ud800" "a\udc00\ud800b" "NaN" "<|im_end|>" null true'
NESTED = r'[] {} [null] [[]] [-1] [1e999] [""] {"\u0000":null}'
LONG = ("1" * 400, "1" * 5000, f'"{"x" * 70_000}"', f"[{'0,' * 3000}0]", f'{{"{"1" * 5000}":1}}')
DEEP = ("[" * 99 + "]" * 99, "[" * 5000 + "]" * 5000, '{"a":' * 98 + "1" + "}" * 98, f"[[1,{'9' * 400}]]")
EXTREMES = (*NUMBERS.split(), *TEXTS.split(), *NESTED.split(), *LONG, *DEEP)
# Bodies that are wrong as a whole.
SMALL = (
    b"",
    b"\0",
    b"null",
    b"[]",
    b'"a"',
    b"1",
    b"{",
    b"\xff\xfe{}",
    b'{"a":1,"a":2}',
    b"{}{}",
    b"\xef\xbb\xbf{}",
)
LARGE = (b'{"model":"' + b"x" * 1_000_000 + b'"}', b"[" * 1_000_000, b'{"a":' * 200_000)


@dataclass
class Tried:
    """What was asked. answers: by status. unsendable: requests that the client itself refused to write."""

    answers: Counter[int] = field(default_factory=Counter)
    unsendable: int = 0
    failures: list[str] = field(default_factory=list)

    def ask(self, send: Callable[[], tuple[int, str]], told: Callable[[], str]) -> None:
        """Sends a request, once more where no answer came, for machines have stood still. told: the request
        in words.
        """
        for again in (False, True):
            try:
                status, text = send()
            except (requests.Timeout, httpx.TimeoutException):
                if again:
                    self.failures.append(f"no answer within {SECONDS:g} s, twice: {told()}")
                continue
            except (requests.ConnectionError, httpx.TransportError) as error:
                self.failures.append(f"the connection ended without an answer ({error}): {told()}")
            except (requests.RequestException, UnicodeError, ValueError):
                self.unsendable += 1
            else:
                self.answers[status] += 1
                if status >= 500 and status != 503:
                    self.failures.append(f"{status} {text[:500]}: {told()}")
            return


def generated(document: Any, address: str, examples: int, number: int, tried: Tried) -> int:
    """So many requests to each route, as schemathesis makes them. Gives the count of routes."""
    usual = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    schema, routes = schemathesis.openapi.from_dict(document), 0
    schema.config.update(base_url=address)

    def one(case: Any) -> None:
        def send() -> tuple[int, str]:
            answer = case.call(timeout=SECONDS)
            return answer.status_code, answer.text

        tried.ask(send, partial(told_of, case))

    for operation in schema.get_all_operations():
        found = operation.ok()
        if found.path not in LEFT_OUT:
            routes += 1
            seed(number)(given(found.as_strategy())(usual(lambda case: one(case))))()
    return routes


def told_of(case: Any) -> str:
    """A request in words, whatever is in it."""
    try:
        return str(case.as_curl_command())
    except Exception as error:
        parts = (case.path_parameters, case.query, case.headers, case.body)
        return f"{case.method} {case.path} {parts!r} (no command of curl: {error})"


def extreme(document: Any, address: str, share: int, number: int, tried: Tried) -> None:
    """Each field of each body at its extremes, and bodies that are none; share: every so manieth of them."""
    with httpx.Client(base_url=address, timeout=SECONDS) as client:

        def send(path: str, body: bytes) -> tuple[int, str]:
            answer = client.post(path, content=body, headers={"content-type": "application/json"})
            return answer.status_code, answer.text

        for at, (path, body) in enumerate(extreme_bodies(document), number):
            if at % share == 0:
                told = partial("POST {} {!r:.2000}".format, path, body)
                tried.ask(partial(send, path, body), told)


def extreme_bodies(document: Any) -> Iterator[tuple[str, bytes]]:
    for path, methods in sorted(document["paths"].items()):
        media = methods.get("post", {}).get("requestBody", {}).get("content", {})
        if path in LEFT_OUT or "application/json" not in media:
            continue
        schema = resolved(media["application/json"]["schema"], document)
        fields = (fields_with(schema, document, name) for name in schema.get("properties", ()))
        for body in (*SMALL, *LARGE, *chain.from_iterable(fields)):
            yield path.replace("{slot}", "0"), body


def fields_with(schema: Any, document: Any, name: str) -> Iterator[bytes]:
    """The least that the schema asks for, with each extreme as one field's value."""
    wanted = schema.get("required", ())
    least = {n: simplest(schema["properties"][n], document) for n in wanted} | {"max_tokens": 2}
    least.pop(name, None)
    rest = json.dumps(least).removeprefix("{")
    for value in EXTREMES:
        yield f"{{{json.dumps(name)}: {value}{', ' if least else ''}{rest}".encode()


def simplest(schema: Any, document: Any, depth: int = 0) -> Any:
    """A small value that the schema allows, by its type alone."""
    schema = resolved(schema, document)
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    if "anyOf" in schema or "oneOf" in schema:
        return simplest((schema.get("anyOf") or schema["oneOf"])[0], document, depth + 1)
    match schema.get("type"):
        case "object":
            wanted = schema.get("required", ())
            return {n: simplest(schema["properties"][n], document, depth + 1) for n in wanted}
        case "array":
            return [simplest(schema.get("items", {}), document, depth + 1)] if depth < 8 else []
        case "integer" | "number":
            return max(1, schema.get("minimum", 1))
        case "boolean":
            return False
    return "a"


def resolved(schema: Any, document: Any) -> Any:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("address")
    options.add_argument("--examples", type=int, default=15, help="generated requests for each route")
    options.add_argument("--share", type=int, default=1, help="of the extreme ones, every so manieth")
    options.add_argument("--seed", type=int, default=0)
    args = options.parse_args()
    document = httpx.get(f"{args.address}/openapi.json", timeout=SECONDS).raise_for_status().json()
    tried = Tried()
    extreme(document, args.address, args.share, args.seed, tried)
    routes = generated(document, args.address, args.examples, args.seed, tried)
    print(*tried.failures, sep="\n")
    answers = dict(sorted(tried.answers.items()))
    print(json.dumps({"routes": routes, "answers": answers, "unsendable": tried.unsendable}))
    sys.exit(bool(tried.failures))


if __name__ == "__main__":
    main()
