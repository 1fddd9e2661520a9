"""`satchel doctor api URL`: checks that a server behaves as clients of OpenAI, Anthropic and Ollama need."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import Annotated

import typer

from satchel.cli.conformance.suite import FAIL, PASS, Verdict, chosen, verdicts
from satchel.cli.console import plain
from satchel.cli.groups import option, wrong
from satchel.errors import RequestError

WIDTH = 110  # characters of a line that says why a check failed


def doctor_api(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server: http://HOST:PORT.")] = "",
    model: Annotated[
        str, option("-m", "--model", help="The model by the server's name; default: its first.")
    ] = "",
    key: Annotated[str, option("--api-key", env="API_KEY", help="The API key.")] = "",
    only: Annotated[
        list[str] | None,
        option("--only", metavar="NAME", help="Checks to run: chat, chat.stream*, ...; may be repeated."),
    ] = None,
    listed: Annotated[bool, option("--list", help="List the checks without running them.")] = False,
    as_json: Annotated[bool, option("--json", help="Print JSON.")] = False,
) -> int:
    """Check a server with requests of the official clients; exit code 1 where a check fails.

    Examples:
        satchel doctor-api http://localhost:8080 --only 'chat*'
    """
    wanted = chosen(only or ())
    if listed:
        for check in wanted:
            print(f"{check.name:<32}  {check.proves}")
        return 0
    if not url.startswith(("http://", "https://")):
        raise wrong("URL", f"expected http://HOST:PORT or https://..., got {url!r}")
    try:
        import httpx  # noqa: F401
    except ImportError:
        raise RequestError("the package httpx is needed: pip install 'satchel[conformance]'") from None
    from satchel.cli.conformance.target import ConformanceTarget

    target, found = ConformanceTarget(url, model, key), []
    for verdict in verdicts(target, wanted):
        found.append(verdict)
        if not as_json:
            show(verdict)
    target.close()
    counts = Counter(v.result for v in found)
    if as_json:
        body = {"url": url, "model": target.model, "counts": counts, "checks": [asdict(v) for v in found]}
        print(json.dumps(body, indent=2, ensure_ascii=False))
    else:
        print(", ".join(f"{counts[word]} {word}" for word in (PASS, FAIL, "SKIP")))
    return 1 if counts[FAIL] else 0


def show(verdict: Verdict) -> None:
    """Prints a check's line, with the reason of a failure below."""
    print(f"{verdict.result}  {verdict.name:<32}  {verdict.proves}", flush=True)
    if verdict.text:
        print(f"      {plain(verdict.text)[: 4 * WIDTH]}", flush=True)
