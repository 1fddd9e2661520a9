"""The second half of the D rows by their ids: redirects, transfers, kept files, and code in files."""

from __future__ import annotations

import json
import os
import pickle
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import toy_checkpoint
from hub_server import COMMIT, Hub, Served, hub_server, rushing_clock, sha

from satchel.cli.main import main
from satchel.errors import ModelError, RequestError, SatchelError
from satchel.formats.gguf import open_gguf
from satchel.store import Store
from satchel.store.web import Interrupted, Web, is_public

D05 = [
    "file:///etc/passwd",
    "ftp://example.org/x",
    "gopher://127.0.0.1/x",
    "http://example.org/x",
    "http://169.254.169.254/latest/meta-data",
    "https://169.254.169.254/latest/meta-data",
    "https://127.0.0.1/x",
    "https://127.1/x",
    "https://2130706433/x",
    "https://0x7f000001/x",
    "https://0/x",
    "https://localhost/x",
    "https://x.localhost/x",
    "https://10.0.0.1/x",
    "https://192.168.0.1/x",
    "https://172.16.0.1/x",
    "https://100.64.0.1/x",
    "https://[::1]/x",
    "https://[::ffff:127.0.0.1]/x",
    "https://[fd00::1]/x",
    "https://[fe80::1]/x",
    "https://[64:ff9b::7f00:1]/x",
    "https://[2002:7f00:1::]/x",
    "https://user:pw@example.org/x",
    "https://",
    "https://[::1",
]


@pytest.mark.parametrize("target", D05)
def test_d05_a_redirect_into_the_dark_is_not_followed(
    target: str, hub: Hub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files["/m.gguf"] = hub.files["/api/models/u/r"] = Served(redirect=target)
    monkeypatch.setattr(socket, "create_connection", only(hub))
    for name in (f"{hub.url}/m.gguf", "hf:u/r"):
        with pytest.raises(RequestError) as error:
            store.pull(name)
        assert "\n" not in str(error.value)
    assert len(hub.asked) == 2


@pytest.mark.parametrize("char", ["\0", "\x1b", "\x7f", "\t"])
def test_d05_an_address_with_a_control_character_is_not_followed(char: str) -> None:
    """No honest server sends one, and the system's resolver fails differently for NUL."""
    from satchel.store.web import _target

    with pytest.raises(RequestError, match="it is not followed"):
        _target("https://a.example/x", f"//127.0{char}.0.1/y")


def only(hub: Hub) -> Callable[..., socket.socket]:
    """Allows connections to this server only; any other would be the tested error."""
    connect = socket.create_connection

    def checked(address: tuple[str, int], *args: Any, **more: Any) -> socket.socket:
        assert f"http://{address[0]}:{address[1]}" == hub.url
        return connect(address, *args, **more)

    return checked


def test_d05_another_port_of_a_private_host_is_not_asked(hub: Hub, store: Store) -> None:
    with hub_server() as other:
        hub.files["/m.gguf"] = Served(redirect=f"{other.url}/m.gguf")
        with pytest.raises(RequestError, match="expected https://, got http://; it is not followed"):
            store.pull(f"{hub.url}/m.gguf")
        assert other.asked == []


def test_d05_a_name_that_resolves_to_a_private_address(
    hub: Hub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one whose second DNS answer differs: the connection goes to the checked address."""
    asked: list[str] = []

    def resolve(host: str, port: int, *args: Any, **more: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", port)), *private]

    def connect(address: tuple[str, int], *args: Any, **more: Any) -> socket.socket:
        tried.append(address[0])
        raise ConnectionRefusedError(111, "refused")

    tried: list[str] = []
    private: list[Any] = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 443))]
    url = "https://cdn.example/m.gguf"
    with closing(Web([hub.url])) as web:
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        with (
            pytest.raises(RequestError, match=r"cdn.example \(10.0.0.1\): .* private network"),
            web.open(url),
        ):
            pass
        private.clear()
        monkeypatch.setattr(socket, "create_connection", connect)
        with pytest.raises(Interrupted, match="refused"), web.open(url):
            pass
    assert tried == ["93.184.216.34"] and asked == ["cdn.example"] * 2


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("::ffff:93.184.216.34", True),
        ("224.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("255.255.255.255", False),
        ("fe80::1%eth0", False),
        ("64:ff9b::a00:1", False),
    ],
)
def test_d05_what_a_public_address_is(address: str, public: bool) -> None:
    assert is_public(address) is public


def test_d05_another_host_gets_no_token(hub: Hub, environ: dict[str, str], model: bytes) -> None:
    with hub_server() as other:
        hub.put_repo("u/r", {"m.gguf": model})
        hub.files[f"/u/r/resolve/{COMMIT}/m.gguf"] = Served(redirect=f"{other.url}/blob?signed=1")
        other.files["/blob"] = Served(model)
        told = {"HF_TOKEN": "secret", "SATCHEL_TRUSTED_HOSTS": other.url}
        assert Store(environ=environ | told).pull("hf:u/r").read_bytes() == model
        assert all("authorization" not in headers for _, headers in other.asked) and other.asked
        assert {headers.get("authorization") for _, headers in hub.asked} == {"Bearer secret"}


def test_d05_redirects_end(hub: Hub, store: Store) -> None:
    hub.files["/m.gguf"] = Served(redirect="/m.gguf")
    with pytest.raises(RequestError, match="expected at most 6 redirects, got more"):
        store.pull(f"{hub.url}/m.gguf")


@pytest.mark.parametrize(
    "changes",
    [
        {"length": 10},
        {"length": 10**9},
        {"said": "bytes 5-{last}/{size}"},
        {"said": "bytes {first}-{last}/7"},
        {"ranges": False},
        {"cut": 5},
    ],
    ids=str,
)
def test_d06_a_transfer_that_lies_gives_the_right_file_or_none(
    changes: dict[str, Any], hub: Hub, store: Store, model: bytes
) -> None:
    """False Content-Length and Range; a changing ETag is in test_store_download.py."""
    hub.put_repo("u/r", {"m.gguf": model})
    hub.files[f"/u/r/resolve/{COMMIT}/m.gguf"] = Served(model, **changes)
    try:
        assert store.pull("hf:u/r").read_bytes() == model
    except RequestError:
        nothing_is_stored_until_it_is_right(hub, store, model)


def test_d06_a_drip_gives_no_file(
    hub: Hub, store: Store, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.put_repo("u/r", {"m.gguf": model})
    hub.files[f"/u/r/resolve/{COMMIT}/m.gguf"] = Served(model, cut=500)
    with monkeypatch.context() as patch, pytest.raises(RequestError, match=r"only \d+ bytes came"):
        rushing_clock(patch)
        store.pull("hf:u/r")
    nothing_is_stored_until_it_is_right(hub, store, model)


def nothing_is_stored_until_it_is_right(hub: Hub, store: Store, model: bytes) -> None:
    assert [entry.place for entry in store.list()] == ["bundled"]
    assert [p for p in store.root.rglob("*.gguf") if ".incoming" not in p.parts] == []
    hub.files[f"/u/r/resolve/{COMMIT}/m.gguf"] = Served(model)
    assert store.pull("hf:u/r").read_bytes() == model


@pytest.mark.parametrize("source", ["hf:u/r", "ollama:m", "url"])
def test_d07_another_file_than_the_recorded_one(
    source: str, hub: Hub, store: Store, model: bytes, other_model: bytes
) -> None:
    name = f"{hub.url}/f/m.gguf" if source == "url" else source

    def serve(data: bytes) -> None:
        hub.put_repo("u/r", {"m.gguf": data})
        hub.put_ollama("library/m", "latest", data)
        hub.files["/f/m.gguf"] = Served(data)

    serve(model)
    path = store.pull(name)
    lock = (store.root / "models.lock").read_bytes()
    serve(other_model)
    with pytest.raises(RequestError, match=r"the server's file is another than"):
        store.pull(name)
    assert path.read_bytes() == model and store.find(name) == path
    path.unlink()  # the pin holds even without the file
    with pytest.raises(RequestError, match=r"the server's file is another"):
        store.pull(name)
    assert (store.root / "models.lock").read_bytes() == lock
    assert store.pull(name, update=True).read_bytes() == other_model == store.find(name).read_bytes()


def test_d07_a_file_that_is_not_what_the_server_says(
    hub: Hub, store: Store, model: bytes, other_model: bytes
) -> None:
    hub.put_repo("u/r", {"m.gguf": model})
    hub.files[f"/u/r/resolve/{COMMIT}/m.gguf"] = Served(other_model)
    with pytest.raises(RequestError, match=f"sha256: expected {sha(model)}, got {sha(other_model)}"):
        store.pull("hf:u/r")
    assert list(store.root.rglob("*.gguf")) == []


def test_d07_an_address_whose_version_says_nothing(
    hub: Hub, store: Store, model: bytes, other_model: bytes
) -> None:
    """Without the old file, the new one is compared with the lock file's digest."""
    hub.files["/m.gguf"] = Served(model, etag='"same"')
    path = store.pull(f"{hub.url}/m.gguf")
    path.unlink()
    hub.files["/m.gguf"] = Served(other_model, etag='"same"')
    with pytest.raises(RequestError, match=f"sha256: expected {sha(model)}"):
        store.pull(f"{hub.url}/m.gguf")
    assert not path.exists()


@pytest.mark.parametrize("name", ["../m.gguf", "/etc/passwd", "m.gguf", "./m.gguf", ".", "..", "models.lock"])
def test_d08_rm_takes_no_path(
    name: str, hub: Hub, store: Store, model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.put_repo("u/r", {"r.gguf": model})
    store.pull("hf:u/r")
    (tmp_path / "m.gguf").write_bytes(model)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SatchelError):
        store.remove(name)
    assert sorted(tmp_path.rglob("*")) == before


def test_d08_a_lock_file_that_points_outside_removes_nothing(
    store: Store, tmp_path: Path, model: bytes
) -> None:
    victim = tmp_path / "victim.gguf"
    victim.write_bytes(model)
    store.root.mkdir()
    for path in ("../victim.gguf", "a/../../victim.gguf", "x\\victim.gguf", "CON"):
        write_lock(store, path, model)
        with pytest.raises(RequestError, match=r"expected parts of"):
            store.remove("evil")
    write_lock(store, str(victim), model)
    store.remove("evil")
    assert victim.exists() and [entry.place for entry in store.list()] == ["bundled"]


def write_lock(store: Store, path: str, data: bytes) -> None:
    file = f'path = {json.dumps(path)}\nsize = {len(data)}\nsha256 = "{sha(data)}"\n'
    text = f'version = 1\n[[model]]\nname = "evil"\n[[model.file]]\n{file}'
    (store.root / "models.lock").write_text(text)


def test_d08_a_pull_leaves_a_file_in_use_whole(
    hub: Hub, store: Store, model: bytes, other_model: bytes
) -> None:
    hub.put_repo("u/r", {"m.gguf": model})
    path = store.pull("hf:u/r")
    with open_gguf(path) as gguf:
        hub.put_repo("u/r", {"m.gguf": other_model})
        with pytest.raises(RequestError, match="another than"):
            store.pull("hf:u/r")
        store.pull("hf:u/r", update=True)
        gguf.parts[0].check()
        assert bytes(gguf.parts[0].view(0, len(model))) == model
    assert path.read_bytes() == other_model


class Evil:
    """Unpickling it creates a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "m.pt", "m.gguf"])
def test_d09_a_pickle_is_refused_and_not_read(
    name: str, tmp_path: Path, hub: Hub, store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    path, mark = tmp_path / name, tmp_path / "unpickled"
    path.write_bytes(pickle.dumps(Evil(mark)))
    text = ["-f", str(path)]
    for command in (
        ["run", "-m", str(path), "hi"],
        ["inspect", str(path)],
        ["show", str(path)],
        ["imatrix", *text, "-o", str(tmp_path / "o.gguf")],
        ["perplexity", *text],
    ):
        assert main(command) == 1, command
        assert capfd.readouterr().err.strip().splitlines()[-1].startswith("satchel: error: ")
    hub.files[f"/{name}"] = Served(path.read_bytes())
    with pytest.raises(SatchelError):
        store.pull(f"{hub.url}/{name}")
    assert not mark.exists() and [entry.place for entry in store.list()] == ["bundled"]


def test_d10_code_of_a_repository_is_never_run(hub: Hub, store: Store, model: bytes, tmp_path: Path) -> None:
    folder, mark = toy_checkpoint.write(tmp_path / "toy"), tmp_path / "ran"
    config = json.loads((folder / "config.json").read_text())
    config |= {"auto_map": {"AutoModelForCausalLM": "evil.Model", "AutoConfig": "evil.Config"}}
    (folder / "config.json").write_text(json.dumps(config | {"trust_remote_code": True}))
    code = f"import pathlib\npathlib.Path({str(mark)!r}).touch()\nclass Model: pass\nclass Config: pass\n"
    for name in ("evil.py", "modeling_evil.py", "__init__.py", "conftest.py"):
        (folder / name).write_text(code)
    assert main(["convert", str(folder), str(tmp_path / "out.gguf")]) == 0
    files = {"m.gguf": model, "evil.py": code.encode(), "config.json": json.dumps(config).encode()}
    hub.put_repo("u/r", files)
    store.pull("hf:u/r")
    assert [path for path in hub.paths() if path.endswith((".py", ".json"))] == []
    assert not mark.exists()


@pytest.mark.parametrize(
    "name", ["../../evil", "..", "/etc/x", "a\\b", "evil.py", "__init__", "graph", "a\0b"]
)
def test_d12_no_name_of_a_file_or_command_reaches_code(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Architectures, commands and tool-call families are found by file name; other names find nothing."""
    import mini_file

    path = mini_file.write_mini(tmp_path / "m.gguf", {"general.architecture": name})
    assert main(["plan", str(path)]) == 1
    assert main([name]) == 2
    assert "architecture" in capfd.readouterr().err


def test_d12_a_header_names_no_file(hub: Hub, store: Store, model: bytes, tmp_path: Path) -> None:
    says = {"Content-Disposition": 'attachment; filename="../../evil.gguf"'}
    hub.files["/m.gguf"] = Served(model, headers=says)
    path = store.pull(f"{hub.url}/m.gguf")
    assert path.name == "m.gguf" and list(tmp_path.rglob("evil*")) == []


def test_d12_a_web_page_gets_no_name(hub: Hub, store: Store) -> None:
    hub.files["/m.gguf"] = Served(b"<!DOCTYPE html><p>Please sign in")
    with pytest.raises(ModelError, match="got a web page"):
        store.pull(f"{hub.url}/m.gguf")
    assert list(store.root.rglob("m.gguf")) == []


def test_a_damaged_header_gets_no_name(hub: Hub, store: Store, model: bytes) -> None:
    hub.files["/m.gguf"] = Served(model[:200] + b"\xff" * 40 + model[240:])
    with pytest.raises(ModelError):
        store.pull(f"{hub.url}/m.gguf")
    hub.files["/m.gguf"] = Served(model[:-50])
    with pytest.raises(ModelError, match=r"cut short|past the end|expected"):
        store.pull(f"{hub.url}/m.gguf")
    assert list(store.root.rglob("*.gguf")) == [] and [entry.place for entry in store.list()] == ["bundled"]
