"""The host's part of streams over HTTP: processor microseconds a token of each process and thread of
`satchel serve`, over an engine that computes nothing.

    python bench/http_host.py [MODEL.gguf] [--streams 128] [--tokens 400] [--step-ms 50] [--rounds 3]
                              [--serve="--http-processes 2"]

The engine's steps last as long as --step-ms says and sample random tokens of four ASCII characters each, so
the tokens of a stream can be counted by the length of its text; 0: as fast as they go, where tokens of a
stream that come together leave in one chunk. What is counted lies between the last stream's first token and
the first stream's last, so requests are not in it. Clients are plain sockets in this process.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import selectors
import socket
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from serving_process import TICK, Process

from satchel.errors import RequestError
from satchel.runtime.api.model import Model
from satchel.store.resolve import default_model

WIDTH = 4  # characters of each token
TEXT = re.compile(rb'"(?:content|text)":"([^"]+)"')
KINDS = {"chat": "/v1/chat/completions", "text": "/v1/completions", "anthropic": "/v1/messages"}
ENV = "SATCHEL_BENCH_STEPS"  # the ids to sample from and the seconds of a step, for the worker process


# In the server's and the worker's process


def serve(words: Sequence[str]) -> None:
    """`satchel serve` whose worker process runs main_empty()."""
    from satchel.cli.main import main
    from satchel.runtime.worker import process

    here = str(Path(__file__).resolve().parent)
    process.START = process.START.replace("from {} import main; main()", "") + (
        f"sys.path.append({here!r}); from http_host import main_empty; main_empty()"
    )
    sys.argv = ["satchel", "serve", *words]
    main()


def main_empty() -> None:
    """The worker process, with steps that compute nothing."""
    from satchel.runtime.engine.program import Program
    from satchel.runtime.worker import child

    ids, seconds = json.loads(os.environ[ENV])
    drawn = np.random.default_rng(0).choice(np.asarray(ids, np.int32), 1 << 16)
    state = {"at": 0, "due": 0.0}

    def run(self: Program, between: object = None) -> None:
        pass

    def part(self: Program, size: int = 0) -> None:
        pass

    def read(self: Program, out: Any, offset: int | None = None) -> Any:
        state["due"] = max(time.perf_counter(), state["due"] + seconds)
        time.sleep(max(0.0, state["due"] - time.perf_counter()) if seconds else 0.0)
        state["at"] = (state["at"] + len(out)) % (len(drawn) - len(out))
        rows = out if out.ndim == 1 else out[:, 0]  # beside it, the bits of host-sampled tokens
        rows[:] = drawn[state["at"] : state["at"] + len(out)]
        return out

    Program.run, Program.read = run, read  # type: ignore[method-assign,assignment]
    Program.run_forward, Program.run_sampling = part, part  # type: ignore[method-assign,assignment]
    child.main()


# The clients


@dataclass
class Stream:
    """A stream under way."""

    wire: socket.socket
    data: bytearray = field(default_factory=bytearray)
    pieces: int = 0
    characters: int = 0
    over: bool = False

    def read(self) -> None:
        came = self.wire.recv(1 << 16)
        self.over = not came or came.endswith(b"0\r\n\r\n")
        self.data += came
        cut = self.data.rfind(b"\n\n") + 2
        if cut > 1:
            found = TEXT.findall(self.data, 0, cut)
            self.pieces += len(found)
            self.characters += sum(map(len, found))
            del self.data[:cut]


def ask(url: str, kind: str, number: int, tokens: int, more: dict[str, Any]) -> Stream:
    place = urlsplit(url)
    wire = socket.create_connection((place.hostname, place.port))
    hello = [{"role": "user", "content": f"Count to {number}"}]
    given: dict[str, Any] = {"prompt": f"Count to {number}"} if kind == "text" else {"messages": hello}
    body = json.dumps({**given, "stream": True, "max_tokens": tokens, **more}).encode()
    head = f"POST {KINDS[kind]} HTTP/1.1\r\nhost: {place.netloc}\r\ncontent-type: application/json"
    wire.sendall(f"{head}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    wire.setblocking(False)
    return Stream(wire)


def spent(pids: Sequence[int]) -> Counter[str]:
    """Processor seconds by process and thread."""
    found: Counter[str] = Counter()
    for pid in pids:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        what = "engine" if b"main_empty" in words else "server" if b"--serving" in words else f"other-{pid}"
        for task in Path(f"/proc/{pid}/task").iterdir():
            text = (task / "stat").read_text()
            fields = text.rpartition(")")[2].split()
            seconds = (int(fields[11]) + int(fields[12])) / TICK
            found[f"{what} {text.partition('(')[2].rpartition(')')[0]}-{task.name}"] += seconds
            found[f"{what} in all"] += seconds
    return found


def measure(process: Process, kind: str, streams: int, tokens: int, more: dict[str, Any]) -> dict[str, Any]:
    """Microseconds a token of each thread, pieces a token, and tokens a second."""
    with selectors.DefaultSelector() as ready:
        every = [ask(process.url, kind, number, tokens, more) for number in range(streams)]
        for stream in every:
            ready.register(stream.wire, selectors.EVENT_READ, stream)
        begun, before, start, pieces, characters = False, Counter[str](), 0.0, 0, 0
        after, seconds, count = Counter[str](), 0.0, 0.0
        while any(not stream.over for stream in every):
            for key, _ in ready.select(60):
                key.data.read()
                if key.data.over:
                    ready.unregister(key.data.wire)
                    key.data.wire.close()
            came = sum(stream.characters for stream in every)
            if not begun and all(stream.pieces for stream in every):
                begun, before, start = True, spent(process.family()), time.perf_counter()
                pieces, characters = sum(s.pieces for s in every), came
            elif begun and not after and any(s.characters >= WIDTH * (tokens - 2) for s in every):
                after, seconds = spent(process.family()), time.perf_counter() - start
                pieces = sum(s.pieces for s in every) - pieces
                count = (came - characters) / WIDTH
    if not after:
        raise RequestError("the streams did not run all at once: give more --tokens")
    used = {name: 1e6 * (after[name] - before[name]) / count for name in after}
    return {
        "us": {name: round(us, 2) for name, us in sorted(used.items()) if us >= 0.05},
        "pieces_per_token": pieces / count,
        "tokens_per_second": count / seconds,
    }


def ids_of(path: Path) -> list[int]:
    """Tokens whose text has WIDTH ASCII letters or a space before letters."""
    with Model.load(path, context=64) as model:
        texts = ((i, model.tokenizer.token_bytes(i)) for i in range(model.tokenizer.vocab_size))
        return [i for i, t in texts if len(t) == WIDTH and t.isascii() and t.decode().strip().isalpha()]


def main() -> None:
    if "--serving" in sys.argv:
        serve(sys.argv[sys.argv.index("--serving") + 1 :])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, nargs="?", default=None)
    parser.add_argument("--kind", choices=KINDS, default="chat")
    parser.add_argument("--streams", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fields", type=json.loads, default={}, help="more fields of each request, as JSON")
    parser.add_argument("--serve", default="", help="more options of the server")
    options = parser.parse_args()
    model = options.model or default_model()
    os.environ[ENV] = json.dumps([ids_of(model), options.step_ms / 1e3])
    command = [sys.executable, __file__, "--serving", str(model), "--port", "0", "--no-sandbox"]
    command += ["-np", str(options.streams), "-c", str(options.tokens + 400), *options.serve.split()]
    with Process(command) as process:
        process.ready("/readyz")
        measure(process, options.kind, options.streams, options.tokens + 300, options.fields)  # compiles
        for _ in range(options.rounds):
            found = measure(process, options.kind, options.streams, options.tokens, options.fields)
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
