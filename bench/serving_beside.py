"""Satchel's server beside llama.cpp's llama-server: the same model file, cores, slots, context and streaming
clients.

Both servers stay loaded, and one at a time is asked. A round asks each of them with equal requests for
SECONDS; the next round has the other order, so a change of the machine's speed meets both. A ratio belongs
to one round. The lengths of the answers are drawn from ANSWERS, because the end-of-sequence token is
ignored: the work is equal, and requests come and go one by one. Clients are threads of this process with
plain sockets, which leave the cores to the server.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

from engine_rows import Finding
from serving_process import llama_server, satchel

from satchel.cli.load.requests import LoadShape, made_up
from satchel.cli.load.stream import Outcome, written
from satchel.cli.load.summary import spread
from satchel.errors import RequestError

SECONDS = 6.0  # of one server's part of a round
PROMPT, ANSWERS = 24, range(32, 97)  # words of a question, tokens of an answer
PATIENCE = 120.0  # seconds without a byte after which a stream fails
WANTED = 3.0  # times llama-server's tokens per second, for more than one client
SERVERS = ("Satchel", "llama-server")


def stream(url: str, outcome: Outcome) -> None:
    """Sends the outcome's request and notes when each piece of the answer arrives. RequestError where the
    answer is not whole: a comparison of speed has no use for it.
    """
    request = outcome.request
    more = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0, "ignore_eos": True}
    body = json.dumps(request.body | more).encode()
    with closing(HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)) as connection:
        try:
            connection.request("POST", f"/v1{request.path}", body, {"Content-Type": "application/json"})
            response, rest = connection.getresponse(), b""
            while chunk := response.read1(1 << 16):
                *lines, rest = (rest + chunk).split(b"\n")
                take(lines, outcome)
        except (OSError, HTTPException, ValueError) as error:
            raise RequestError(f"{url}: a stream broke: {error}") from None
    if response.status != 200 or not (outcome.finish and outcome.tokens and outcome.pieces):
        told = rest.decode("utf-8", "replace")[:200]
        raise RequestError(f"{url}: expected a whole stream, got HTTP {response.status}: {told}")


def take(lines: Sequence[bytes], outcome: Outcome) -> None:
    """Notes the events in these lines."""
    for line in lines:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            outcome.tokens = (event.get("usage") or {}).get("completion_tokens", outcome.tokens)
            for choice in event.get("choices", ()):
                outcome.finish = choice.get("finish_reason") or outcome.finish
                if written(choice):
                    outcome.pieces.append(time.perf_counter())


@dataclass(frozen=True, slots=True)
class Round:
    """One server's part of a round."""

    outcomes: list[Outcome]
    end: float  # the clients send no request after it
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second until `end`. Of an answer that goes on, its share of pieces counts: a piece may
        have several tokens.
        """
        early = (o.tokens * sum(p < self.end for p in o.pieces) / len(o.pieces) for o in self.outcomes)
        return sum(early) / self.seconds


def asked(url: str, clients: int, seed: int, seconds: float) -> Round:
    """Clients that ask until the time is over, and then read to the end."""
    found = Round([], time.perf_counter() + seconds, seconds)

    def client(seed: int) -> None:
        for request in made_up(LoadShape((PROMPT,), ANSWERS), seed):
            if (now := time.perf_counter()) >= found.end:
                return
            outcome = Outcome(request, due=now)
            found.outcomes.append(outcome)
            stream(url, outcome)

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, random.Random(seed).sample(range(1 << 30), clients)))
    return found


def speed(rounds: Sequence[Round]) -> str:
    """Tokens per second, time to first token and time between tokens of one server's rounds."""
    outcomes = [outcome for part in rounds for outcome in part.outcomes]
    first = spread(o.pieces[0] - o.due for o in outcomes)
    after = spread(b - a for o in outcomes for a, b in pairwise(o.pieces))
    assert first and after
    rate = statistics.median(part.rate for part in rounds)
    return (
        f"{rate:.0f} t/s; first p50 {first['p50']:.0f}, p99 {first['p99']:.0f} ms; "
        f"next p50 {after['p50']:.1f}, p99 {after['p99']:.1f} ms"
    )


def compared(clients: int, ours: Sequence[Round], theirs: Sequence[Round]) -> Iterator[Finding]:
    """The rows of so many clients: each server, then the ratio of each round. RequestError where a server
    gave no token in a round: something else holds the cores, and the ratio would be that one's.
    """
    if not all(part.rate for part in (*ours, *theirs)):
        raise RequestError(
            f"{clients} clients: expected tokens in each {SECONDS:g} seconds, got none in some: the machine "
            "is busy with something else; measure on an idle one"
        )
    for name, rounds in zip(SERVERS, (ours, theirs), strict=True):
        yield Finding(f"{name}, clients: {clients}", speed(rounds), "", None)
    ratios = sorted(a.rate / b.rate for a, b in zip(ours, theirs, strict=True))
    least, middle, most = ratios[0], statistics.median(ratios), ratios[-1]
    wanted = WANTED if clients > 1 else 1.0
    text = f"{middle:.2f} times the tokens per second ({least:.2f} to {most:.2f} in {len(ratios)} rounds)"
    yield Finding(f"ratio, clients: {clients}", text, f"at least {wanted:g}", middle >= wanted)


def in_rounds(urls: Sequence[str], clients: int, rounds: int) -> list[list[Round]]:
    """Each server's rounds, after a shorter one that fills caches and compiles plans."""
    found: list[list[Round]] = [[] for _ in urls]
    for url in urls:
        asked(url, clients, 0, SECONDS / 3)
    for number in range(1, rounds + 1):
        for which in range(len(urls))[:: 1 if number % 2 else -1]:
            found[which].append(asked(urls[which], clients, number, SECONDS))
    return found


def beside(
    program: Path, model: Path, counts: Sequence[int], rounds: int, more: Sequence[str]
) -> Iterator[Finding]:
    """The comparison for each number of clients. more: options of `satchel serve`."""
    slots = max(counts)
    with llama_server(program, model, slots) as peer, satchel(model, slots, *more) as own:
        own.ready("/readyz")
        peer.ready("/health")
        for clients in counts:
            ours, theirs = in_rounds((own.url, peer.url), clients, rounds)
            yield from compared(clients, ours, theirs)
