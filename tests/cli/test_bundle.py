"""`satchel bundle`: the program with a model in it chats and serves as the model does, a damaged or foreign
one is an error, and hostile requests are refused at the cost of their size.
"""

from __future__ import annotations

import http.client
import json
import os
import plistlib
import re
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import installed
import pytest
from embedded import ROOT
from installed import ran, tool
from once import made_once
from tiny_file import write_model
from waiting import SECONDS, until

from satchel import Model
from satchel.cli.bundles.footer import ALIGN, FOOTER, footer
from satchel.cli.bundles.stubs import MARK, find_stub, target_of
from satchel.cli.bundles.write import write_bundle
from satchel.cli.main import main
from satchel.errors import RequestError
from satchel.formats.gguf import open_gguf
from satchel.runtime.aot.build import build
from satchel.runtime.aot.records import HAL_HASH

MESSAGES = [{"role": "user", "content": "Hello! Who are you?"}]


@pytest.fixture(scope="module")
def stub() -> Path:
    path = installed.build_folder() / "embed" / "satchel-program"
    if not path.exists():
        pytest.skip("the program of `satchel bundle` was not built: make .venv/ready-to-test")
    return path


@pytest.fixture(scope="module")
def app(bundled_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed.bundled_app(tmp_path_factory, bundled_model)[0]


@pytest.fixture(scope="module")
def chat(stub: Path, app: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    assert main(["bundle", str(app), "-o", str(folder / "chat"), "--stub", str(stub)]) == 0
    return folder / "chat"


@pytest.fixture(scope="module")
def wanted(bundled_model: Path) -> str:
    """The engine's greedy answer to MESSAGES, by the model's own template."""
    with Model.load(bundled_model, context=512, device="cpu") as model:
        return model.chat(MESSAGES, temperature=0, max_tokens=64).read()


@pytest.mark.model
def test_it_chats_without_anything_beside_it(chat: Path, wanted: str, tmp_path: Path) -> None:
    moved = shutil.copy(chat, tmp_path / "my chat")
    empty = {"PATH": ""}
    assert ran([moved, "--greedy", "--prompt", MESSAGES[0]["content"]], empty).rstrip("\n") == wanted
    talk = subprocess.run([moved, "--greedy"], input=f"{MESSAGES[0]['content']}\n\n", **TEXT)
    assert (talk.returncode, talk.stdout, talk.stderr) == (0, f"> {wanted}\n> > \n", "")


TEXT: dict[str, Any] = {"capture_output": True, "text": True, "encoding": "utf-8"}


@pytest.mark.model
def test_the_model_lies_where_every_system_maps_it(chat: Path, app: Path, stub: Path) -> None:
    data = chat.read_bytes()
    magic, flags, _, offset, size, digest = FOOTER.unpack(data[-FOOTER.size :])
    assert (magic, flags, offset % ALIGN, size) == (b"SATBNDL1", 0, 0, app.stat().st_size)
    assert data[: stub.stat().st_size] == stub.read_bytes()
    assert data[offset : offset + size] == app.read_bytes()
    assert footer(offset, size, digest, flags) == data[-FOOTER.size :]


@pytest.mark.model
def test_a_damaged_or_empty_program_says_so(chat: Path, stub: Path, tmp_path: Path) -> None:
    def told(data: bytes) -> str:
        path = tmp_path / "program"
        path.write_bytes(data)
        path.chmod(0o755)
        done = subprocess.run([path, "--prompt", "x"], **TEXT)
        assert done.returncode == 1
        return str(done.stderr)

    data = chat.read_bytes()
    assert "this program holds no model: `satchel bundle` adds one" in told(stub.read_bytes())
    assert "holds no model" in told(data[:-1])
    for at in (8, 16, 24):
        damaged = bytearray(data)
        damaged[len(data) - FOOTER.size + at] ^= 1
        assert "the model in this program is damaged" in told(bytes(damaged))
    far = data[: -FOOTER.size] + footer(1 << 62, 1 << 62, bytes(32), 0)
    assert "the model in this program is damaged" in told(far)


def test_other_files_are_no_program_and_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreign = tmp_path / "foreign"
    for data in (b"", b"MZ", b"\x7fELF\x02\x01" + bytes(100), os.urandom(300)):
        foreign.write_bytes(data)
        with pytest.raises(RequestError, match="expected a program for `satchel bundle`"):
            find_stub("x86_64-linux", foreign)
    head = b"\x7fELF\x02\x01" + bytes(12) + struct.pack("<H", 62) + bytes(60)
    foreign.write_bytes(head + MARK + struct.pack("<Q", HAL_HASH ^ 1))
    with pytest.raises(RequestError, match="of another version of Satchel"):
        find_stub("x86_64-linux", foreign)
    foreign.write_bytes(head + MARK + struct.pack("<Q", HAL_HASH))
    assert find_stub("", foreign).target == "x86_64-linux"
    with pytest.raises(RequestError, match=r"--target: expected one of x86_64-linux, .*, got amiga"):
        find_stub("amiga", None)


@pytest.mark.model
def test_the_command_names_what_is_missing(
    bundled_model: Path, app: Path, stub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = ["-o", str(tmp_path / "chat")]
    assert main(["bundle", str(bundled_model), *output]) == 1
    assert "holds no plan: run `satchel build" in capsys.readouterr().err
    assert main(["bundle", str(app), *output, "--stub", str(stub), "--target", "aarch64-macos"]) == 1
    assert "--stub: expected a program for aarch64-macos, got one for" in capsys.readouterr().err
    assert not (tmp_path / "chat").exists()


def test_targets_are_read_from_the_program() -> None:
    pe = b"MZ" + bytes(58) + struct.pack("<I", 64) + b"PE\0\0" + struct.pack("<H", 0x8664) + bytes(200)
    assert target_of(pe) == "x86_64-windows"
    assert target_of(b"\xcf\xfa\xed\xfe" + struct.pack("<I", 0x0100000C) + bytes(40)) == "aarch64-macos"


def test_an_app_folder_has_the_model_in_its_resources(tmp_path: Path) -> None:
    program, model = tmp_path / "program", tmp_path / "model.gguf"
    mach = (
        b"\xcf\xfa\xed\xfe" + struct.pack("<I", 0x0100000C) + bytes(40) + MARK + struct.pack("<Q", HAL_HASH)
    )
    program.write_bytes(mach)
    model.write_bytes(b"GGUF" + bytes(1000))
    for serve in (True, False):
        app = write_bundle(find_stub("", program), model, tmp_path / "Mein Gespräch", serve)
        assert app == tmp_path / "Mein Gespräch.app"
        facts = plistlib.loads((app / "Contents" / "Info.plist").read_bytes())
        assert facts["CFBundleExecutable"] == facts["CFBundleName"] == "Mein Gespräch"
        assert facts["CFBundleIdentifier"] == "satchel.bundle.Mein-Gespr-ch"
        run = app / "Contents" / "MacOS" / facts["CFBundleExecutable"]
        assert (run.read_bytes(), run.stat().st_mode & 0o777) == (mach, 0o755)
        assert (app / "Contents" / "Resources" / "model.gguf").read_bytes() == model.read_bytes()
        assert (app / "Contents" / "Resources" / "serve").exists() == serve


# --- unusual files and places


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model without a chat template, built. Its path has spaces, quotes and other letters."""

    def make(folder: Path) -> None:
        source = write_model(folder / "m.gguf", seed=5, qwen3__context_length=512)
        with open_gguf(source) as gguf:
            build(gguf, folder / PLAIN)

    return made_once(tmp_path_factory, "bundle plain Größe", make) / PLAIN


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


PLAIN = "mein Modell 模型 'n\" $HOME.app.gguf"


@pytest.fixture(scope="module")
def plain_chat(stub: Path, plain: Path) -> Path:
    target = plain.with_name("ein Gespräch 会话")
    assert main(["bundle", str(plain), "-o", str(target), "--stub", str(stub)]) == 0
    return target


def test_names_with_spaces_and_other_letters_and_a_file_without_a_template(
    plain: Path, plain_chat: Path
) -> None:
    """The engine and the program answer alike, as ChatML has it."""
    with Model.load(plain, context=512, device="cpu") as model:
        answer = model.chat(MESSAGES, temperature=0, max_tokens=400).read()
    greedy = ["--greedy", "--prompt", MESSAGES[0]["content"]]
    said = [
        ran([plain_chat, *greedy], {"PATH": ""}),
        ran([plain_chat, "--model", plain, *greedy], {"PATH": ""}),
    ]
    assert len(answer) > 100  # and an end token ends it
    assert said == [answer + "\n"] * 2


def test_a_program_in_a_folder_that_nobody_may_write_to(plain_chat: Path, tmp_path: Path) -> None:
    folder = tmp_path / "no writing"
    folder.mkdir()
    moved = Path(shutil.copy(plain_chat, folder / "chat"))
    moved.chmod(0o555)
    folder.chmod(0o555)
    try:
        done = subprocess.run([moved, "--greedy", "--prompt", "x"], cwd=folder, **TEXT)
        assert (done.returncode, done.stderr, len(done.stdout) > 5) == (0, "", True)
        assert names_in(folder) == ["chat"]
    finally:
        folder.chmod(0o755)


@pytest.mark.parametrize("kept", [0.3, 0.5, 0.9])
def test_a_program_that_was_cut_holds_no_model(kept: float, plain_chat: Path, stub: Path) -> None:
    data = plain_chat.read_bytes()
    program = stub.stat().st_size
    cut = plain_chat.with_name(f"cut {kept}")
    cut.write_bytes(data[: program + int(kept * (len(data) - program))])
    cut.chmod(0o755)
    done = subprocess.run([cut, "--prompt", "x"], **TEXT)
    assert (done.returncode, done.stdout) == (1, "")
    assert "this program holds no model: `satchel bundle` adds one" in done.stderr


def test_a_model_that_was_cut_before_it_was_bundled_is_refused(
    plain: Path, stub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(plain.read_bytes()[:-1000])
    assert main(["bundle", str(cut), "-o", str(tmp_path / "chat"), "--stub", str(stub)]) == 1
    assert "cut.gguf" in capsys.readouterr().err
    assert not (tmp_path / "chat").exists()


def test_an_output_that_exists_is_replaced_unless_it_is_no_file_or_the_model(
    plain: Path, stub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def bundled(source: Path, output: Path) -> str:
        code = main(["bundle", str(source), "-o", str(output), "--stub", str(stub)])
        told = capsys.readouterr()
        assert bool(told.err) == bool(code), told
        return told.err or told.out

    target = tmp_path / "chat"
    target.write_bytes(b"what was there")
    assert bundled(plain, target).startswith(f"{target}: for ")
    assert (target.stat().st_mode & 0o777, target.read_bytes()[:4]) == (0o755, b"\x7fELF")
    source = Path(shutil.copy(plain, tmp_path / "app.gguf"))
    (tmp_path / "link").symlink_to(source)
    for same in (source, tmp_path / "link"):
        assert "is the model: expected another name for the program" in bundled(source, same)
    assert source.read_bytes() == plain.read_bytes()
    (tmp_path / "folder").mkdir()
    assert "expected a regular file or none" in bundled(plain, tmp_path / "folder")
    assert "can't be written: No such file or directory" in bundled(plain, tmp_path / "none" / "chat")
    assert names_in(tmp_path) == ["app.gguf", "chat", "folder", "link"]


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files as Linux does")
def test_a_disk_without_room_leaves_the_old_program(plain: Path, stub: Path, tmp_path: Path) -> None:
    """A limit on the size of files fails the same write that a full disk does."""
    target = tmp_path / "chat"
    target.write_bytes(b"what was there")
    room = plain.stat().st_size // 2 + stub.stat().st_size
    code = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))\n"
        "from satchel.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "bundle", str(plain), "-o", str(target), "--stub", str(stub)]
    done = subprocess.run(command, **TEXT)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{target}: can't be written: File too large; check the path and the disk" in done.stderr
    assert (names_in(tmp_path), target.read_bytes()) == (["chat"], b"what was there")


# --- Windows


@pytest.fixture(scope="module")
def wine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """The program that `make windows` compiled, and an environment in which wine runs it."""
    program = ROOT / "build" / "windows" / "embed" / "satchel-program.exe"
    if not program.exists():
        pytest.skip(f"{program}: was not built: make windows")
    tool("wine", "wine64")
    prefix = tmp_path_factory.mktemp("wine")
    yield program, {**os.environ, "WINEDEBUG": "-all", "WINEPREFIX": str(prefix)}


@pytest.mark.model
def test_a_program_of_windows_chats_also_when_it_is_signed(
    wine: tuple[Path, dict[str, str]], app: Path, wanted: str, tmp_path: Path
) -> None:
    """A signature stands behind the footer, and the header's certificate table says where it begins."""
    program, env = wine
    path = write_bundle(find_stub("x86_64-windows", program), app, tmp_path / "chat", False)
    assert path.name == "chat.exe"
    data = bytearray(path.read_bytes())
    certificates = struct.unpack_from("<I", data, 60)[0] + 24 + 144
    assert (len(data) % 8, struct.unpack_from("<II", data, certificates)) == (0, (0, 0))
    struct.pack_into("<II", data, certificates, len(data), 16)
    path.write_bytes(bytes(data) + struct.pack("<IHH", 16, 0x200, 2) + bytes(8))
    words = ["--greedy", "--prompt", MESSAGES[0]["content"]]
    assert said_in_wine([path, *words], env, tmp_path) == wanted


def said_in_wine(command: list[str | Path], env: dict[str, str], folder: Path, status: int = 0) -> str:
    """What a program of Windows prints, or where it fails, says beside wine's own words. Into files, for
    services of wine outlive it and keep a pipe open.
    """
    with (folder / "said").open("wb") as said, (folder / "told").open("wb") as told:
        words = ["wine", *map(str, command)]
        done = subprocess.run(words, env=env, stdout=said, stderr=told, timeout=SECONDS)
    assert done.returncode == status
    return (folder / ("told" if status else "said")).read_text(encoding="utf-8").strip()


def test_a_program_of_windows_takes_words_of_any_letters(
    wine: tuple[Path, dict[str, str]], plain: Path, tmp_path: Path
) -> None:
    """The system's code page has not all of these; as UTF-16 they come whole."""
    program, env = wine
    env |= {"LC_ALL": "C.UTF-8"}
    word = 'Größe 会话 🙂 "x" \\'
    assert f"{word}: expected: [--serve" in said_in_wine([program, word], env, tmp_path, 2)
    model = shutil.copy(plain, tmp_path / "mein größtes 模型 'n.gguf")  # no name of Windows has quotes
    answer = said_in_wine([program, "--greedy", "--model", model, "--prompt", word], env, tmp_path)
    assert len(answer) > 5
    told = said_in_wine([program, "--model", f"{model} 🙂"], env, tmp_path, 1)
    assert f"{model} 🙂: can't be read" in told


# --- the server


@contextmanager
def serving(program: Path, *words: str) -> Iterator[int]:
    """The port of a program that serves."""
    command = [str(program), "--port", "0", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("http://127.0.0.1:"), process.communicate()
        yield int(line.rpartition(":")[2])
        assert process.poll() is None, "the server died"
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def port(chat: Path, app: Path, stub: Path) -> Iterator[int]:
    target = chat.with_name("server")
    assert main(["bundle", str(app), "-o", str(target), "--stub", str(stub), "--serve"]) == 0
    with serving(target, "--slots", "2") as found:
        yield found


def ask(port: int, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    sent = body if isinstance(body, (str, bytes, type(None))) else json.dumps(body)
    connection.request(method, path, sent, {"Content-Type": "application/json", **headers})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


def complete(port: int, **body: Any) -> tuple[int, str]:
    given = {"messages": MESSAGES, "temperature": 0, "max_tokens": 64, **body}
    return ask(port, "POST", "/v1/chat/completions", {k: v for k, v in given.items() if v is not ...})


@pytest.mark.model
def test_it_serves_openais_api(port: int, wanted: str) -> None:
    status, text = ask(port, "GET", "/v1/models")
    assert (status, json.loads(text)["data"][0]["id"]) == (200, "server")
    status, text = complete(port)
    found = json.loads(text)
    assert (status, found["choices"][0]["message"]["content"]) == (200, wanted)
    assert found["usage"]["completion_tokens"] > 5
    assert found["choices"][0]["finish_reason"] == "stop"
    parts = [{"type": "text", "text": "Hello! "}, {"type": "text", "text": "Who are you?"}]
    status, text = complete(port, messages=[{"role": "user", "content": parts}], max_tokens=2)
    found = json.loads(text)["choices"][0]
    assert wanted.startswith(found["message"]["content"])
    assert found["finish_reason"] == "length"


@pytest.mark.parametrize(
    "name",
    ["é" * 100, "a" + "会" * 80, "ab" + "🙂" * 50, '\x01"\\' * 40, "b.c", "\udcff x\udce9"],
    ids=["two bytes", "three bytes", "four bytes", "escapes", "ending", "no UTF-8"],
)
def test_the_name_of_a_model_is_cut_between_characters(
    name: str, stub: Path, plain: Path, tmp_path: Path
) -> None:
    path = tmp_path / f"{name}.gguf"
    path.symlink_to(plain)
    with serving(stub, "--serve", "--model", str(path)) as port:
        status, text = ask(port, "GET", "/v1/models")
    found = json.loads(text)["data"][0]["id"]
    whole = re.sub("[\udc80-\udcff]", "\ufffd", name)
    room = 127 - len(json.dumps(found, ensure_ascii=False).encode()[1:-1])
    assert (status, whole.startswith(found), found == whole or 0 <= room < 6) == (200, True, True)


@pytest.mark.model
def test_it_streams(port: int, wanted: str) -> None:
    status, text = complete(port, stream=True)
    events = [line[6:] for line in text.split("\n\n") if line]
    assert (status, events[-1]) == (200, "[DONE]")
    choices = [json.loads(event)["choices"][0] for event in events[:-1]]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == wanted
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]


@pytest.mark.model
def test_the_page_loads_nothing_else(port: int) -> None:
    status, text = ask(port, "GET", "/")
    assert status == 200
    assert "src=" not in text and "http" not in text.replace("<!doctype html>", "")


@pytest.mark.model
@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        ("", 400, "JSON"),
        ("[]", 400, "JSON"),
        ("{", 400, "JSON"),
        ('{"messages": [{"role": "user", "content": "x"}]} x', 400, "JSON"),
        ('{"messages": [{"role": "user", "content": "x\\ud800\\u12"}]}', 400, "JSON"),
        ("[" * 100_000, 400, "JSON"),
        ('{"a": ' + "[" * 100_000, 400, "JSON"),
        ('{"a":' * 5000, 400, "JSON"),
        ("{}", 400, "messages: expected one or more"),
        ({"messages": []}, 400, "messages: expected one or more"),
        ({"messages": [{"content": "x"}]}, 400, "role"),
        ({"messages": [{"role": "user", "content": 3}]}, 400, "content"),
        ({"messages": [{"role": "user", "content": ""}] * 1025}, 400, "1024 at most"),
        ({"messages": MESSAGES, "temperature": 1e9}, 400, "temperature: expected 0 to 2, got 1e+09"),
        ({"messages": MESSAGES, "tools": [{}]}, 400, "tools: this server does not know it"),
        ({"messages": MESSAGES, "n": 2}, 400, "n: this server"),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, 400, "expected at most"),
        (b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', 400, "UTF-8"),
        ("x" * (1 << 20), 400, "JSON"),
        ("x" * ((1 << 20) + 1), 413, "1 MiB"),
    ],
)
def test_a_bad_body_is_refused(port: int, body: Any, status: int, why: str) -> None:
    found, text = ask(port, "POST", "/v1/chat/completions", body)
    assert (found, why in json.loads(text)["error"]["message"]) == (status, True), text


@pytest.mark.model
def test_other_sites_and_paths_are_refused(port: int) -> None:
    assert ask(port, "GET", "/", Host="evil.example")[0] == 403
    assert ask(port, "GET", "/", Host="127.0.0.1.evil.example")[0] == 403
    plain = {"Content-Type": "text/plain"}
    body = {"messages": MESSAGES, "max_tokens": 1}
    assert ask(port, "POST", "/v1/chat/completions", body, **plain)[0] == 415
    assert ask(port, "GET", "/v1/chat/completions")[0] == 405
    assert ask(port, "DELETE", "/")[0] == 405
    assert ask(port, "GET", "/../etc/passwd")[0] == 404
    assert ask(port, "GET", "/?" + "x" * 1000)[0] == 200


@pytest.mark.model
@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\0" * 100, 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000, 431),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"G" * 300 + b" / HTTP/1.1\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_is_refused(port: int, raw: bytes, status: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        connection.sendall(raw)
        assert connection.recv(12).decode() == f"HTTP/1.1 {status}"


@pytest.mark.model
def test_many_idle_clients_are_refused_and_one_that_leaves_frees_its_slot(port: int, wanted: str) -> None:
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(32)]
    assert ask(port, "GET", "/v1/models")[0] == 503
    for connection in idle:
        connection.close()
    until(lambda: ask(port, "GET", "/v1/models")[0] == 200, "a free thread")
    body = json.dumps({"messages": MESSAGES, "stream": True, "temperature": 0})
    for _ in range(4):  # twice as many as slots
        with socket.create_connection(("127.0.0.1", port)) as leaving:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            leaving.sendall(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
            assert leaving.recv(9) == b"HTTP/1.1 "
    until(lambda: complete(port)[0] == 200, "a free slot")
    assert json.loads(complete(port)[1])["choices"][0]["message"]["content"] == wanted
