"""Asks an installed Satchel through its commands: `python answers.py [COMMAND ...]`, with the Python that has
it, on a system where nothing else of this project is. Commands after it: these alone. The bundled model is
that of the package satchel-model-40m.

Every command is asked at least once; a new one without a question is an error. Each has to end with its exit
code and print what belongs to it; a line says so. Where the packages of the extra `server` are there, the
server is started as a program of its own and asked over loopback. The last line has the words that the model
gives where nothing is drawn by chance: they are the same on every system, and the server's are these too.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

ASKED = "Hello! Who are you?"
TEXT = "The ferry to the island leaves at nine and takes an hour. It does not run in winter. " * 8
SERVER = find_spec("uvicorn") is not None  # the extra `server` is installed
SERVE = (
    (("serve", "--help"), 0, r"--port")
    if SERVER
    else (("serve", "--port", "0"), 1, r"pip install 'satchel\[server\]'")
)
PATIENCE = 600  # seconds for one answer of the server; an emulator takes minutes to start it
GREEDY = ("run", ASKED, "-n", "24", "--temp", "0", "-c", "256")


def questions() -> Iterator[tuple[tuple[str, ...], int, str]]:
    """(words of a command, its exit code, a pattern of what it prints on stdout or stderr)"""
    quantized, joined = "small.gguf", "joined.gguf"
    yield ("--version",), 0, r"\d+\.\d+"
    yield ("--help",), 0, r"chat\b"
    yield ("run", "--help"), 0, r"--temp"
    yield ("list",), 0, r"satchel-40m\S* .*bundled"
    yield ("show",), 0, r"qwen3"
    yield ("inspect", "--no-tensors"), 0, r"general\.architecture"
    yield ("hash", "--no-tensors"), 0, r"[0-9a-f]{64}"
    yield ("verify",), 0, r"\w"
    yield ("plan", "-c", "256"), 0, r"cpu"
    yield ("tokenize", ASKED), 0, r"\d+"
    yield ("complete", "The sky is", "-n", "4", "-c", "64"), 0, r"\w"
    yield ("embed", ASKED, "-c", "64"), 0, r"-?0\.\d+"
    yield ("perplexity", "-f", "text.txt", "-c", "64"), 0, r"\d+\.\d+"
    yield ("quantize", str(bundled()), quantized, "Q8_0", "--allow-requantize"), 0, r"\w"
    yield ("edit", quantized, "changed.gguf", "--set", "general.name=changed"), 0, r""
    yield ("split", quantized, "part", "--split-max-size", "20M"), 0, r""
    yield ("merge", "part-00001-of-00003.gguf", joined), 0, r""
    yield ("run", "Hi!", "-m", joined, "-n", "4", "-c", "64"), 0, r"\w"
    yield ("bench", "-p", "16", "-n", "4", "-r", "1"), 0, r"tg4"
    yield ("doctor",), 0, r"PASS +cpu "
    yield ("run", "Hi!", "-m", "absent.gguf"), 1, r"absent\.gguf"
    yield ("chat", "-n", "4", "-c", "64"), 0, r"\w"
    yield ("rerank", ASKED, "-f", "lines.txt", "--embeddings", "-c", "64"), 0, r"-?\d\.\d+"
    yield ("imatrix", "-f", "text.txt", "-o", "importance.gguf", "-c", "64", "--chunks", "1"), 0, r"1 windows"
    yield ("build", joined, "-o", "app.gguf"), 0, r"plan for the kernels"
    # The programs of bundles are in a package of their own, which is not installed.
    yield ("bundle", "app.gguf", "-o", "program"), 1, r"pip install 'satchel\[bundle\]'"
    yield ("cp", joined, "mine"), 0, r"mine is"
    yield ("create", "made", "-f", "Modelfile"), 0, r"made\.gguf"
    yield ("rm", "made"), 0, r"removed made"
    yield ("search", "--offline", "satchel"), 0, r"bundled"
    yield ("pull", "--offline", "absent"), 1, r"offline, and not in the store"
    yield ("convert", "absent", "converted.gguf"), 1, r"expected the folder of a checkpoint"
    yield ("tune", "--show"), 0, r"nothing is tuned"
    yield ("config",), 0, r"ctx-size"
    yield ("completion", "bash"), 0, r"complete -F"
    yield ("doctor-api", "http://127.0.0.1:9", "--list"), 0, r"chat\."
    yield ("ps",), 1, r"is `satchel serve` running"
    yield ("stop", "absent"), 1, r"is `satchel serve` running"
    yield ("device", "--make-key", "fleet.key"), 0, r"a new key"
    yield ("engine",), 2, r"--key-file"
    yield ("deploy", "absent.toml", "--dry-run"), 1, r"absent\.toml|satchel\[server,ray\]"
    yield ("worker", "--help"), 0, r"libsatchel"  # it takes this process's standard input and output
    # Without its extra, which needs more wheels, the server says what is missing.
    yield SERVE


def bundled() -> Path:
    from satchel.store.resolve import default_model

    return default_model()


def asked(words: tuple[str, ...]) -> tuple[int, str]:
    """Exit code, and what is printed."""
    from satchel.cli.main import main

    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    if words[0] == "chat":
        sys.stdin = io.TextIOWrapper(io.BytesIO(b"Hi!\n"))
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main(list(words)) or 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return code, said.buffer.getvalue().decode()


def served() -> tuple[str, str]:
    """What a server of the bundled model says of its health, and what it answers to ASKED."""
    words = [sys.executable, "-m", "satchel", "serve", "--host", "127.0.0.1", "--port", "0", "-c", "256"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, encoding="utf-8") as server:
        try:
            assert server.stderr is not None
            told = next((line for line in server.stderr if "http://" in line), "")
            address = re.search(r"http://127\.0\.0\.1:\d+", told)
            if address is None:
                return f"it did not listen: {told}", ""
            health = ready(f"{address[0]}/health")
            body = {"messages": [{"role": "user", "content": ASKED}], "max_tokens": 24, "temperature": 0}
            answer = json.loads(fetched(f"{address[0]}/v1/chat/completions", body))
            return health, str(answer["choices"][0]["message"]["content"])
        finally:
            server.terminate()


def ready(url: str) -> str:
    """What the server says of its health, once it has loaded the model; its last refusal if it never does."""
    said = ""
    for _ in range(PATIENCE):
        try:
            return fetched(url)
        except urllib.error.HTTPError as error:
            said = f"{error.code}: {error.read().decode()}"
        time.sleep(1)
    return said


def fetched(url: str, body: object = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=PATIENCE) as response:
        return str(response.read().decode())


def unasked() -> set[str]:
    """The commands that no question asks."""
    from satchel.cli.main import commands

    return set(commands()) - {words[0] for words, _, _ in questions()}


def judge(chosen: list[str]) -> int:
    """The number of commands that did something else. chosen: the commands that are asked; empty: all."""
    wrong = len(unasked())
    if wrong:
        print("WRONG no question for", *sorted(unasked()))
    for words, wanted, pattern in questions():
        if chosen and words[0] not in chosen:
            continue
        code, said = asked(words)
        fine = code == wanted and re.search(pattern, said)
        wrong += not fine
        print("ok   " if fine else "WRONG", " ".join(words[:4]), flush=True)
        if not fine:
            print(f"exit code {code}, expected {wanted}; it printed\n{said}", flush=True)
    code, said = asked(GREEDY)
    wrong += code != 0
    first = said.split("\n")[0].strip()
    if SERVER:
        health, answer = served()
        fine = '"status":"ok"' in health.replace(" ", "") and answer.startswith(first)
        wrong += not fine
        print("ok   " if fine else "WRONG", "a server says", health, "and answers", repr(answer), flush=True)
    print(f"{platform.system()} {platform.machine()}: {first!r}")
    return wrong


def main() -> int:
    home = bundled().parent.name
    if home != "satchel_model_40m":
        print(f"the bundled model is in {home}, not in its own package", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        before = Path.cwd()
        os.chdir(folder)
        os.environ["SATCHEL_MODELS"] = str(Path(folder) / "store")
        Path("text.txt").write_text(TEXT, encoding="utf-8")
        Path("lines.txt").write_text("A ferry.\nA tea pot.\n", encoding="utf-8")
        Path("Modelfile").write_text("FROM ./joined.gguf\n", encoding="utf-8")
        os.environ["SATCHEL_HOST"] = "127.0.0.1:9"
        try:
            return int(judge(sys.argv[1:]) > 0)
        finally:
            os.chdir(before)


if __name__ == "__main__":
    sys.exit(main())
