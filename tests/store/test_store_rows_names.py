"""The first half of the D rows by their ids: names, digests, manifests, realms; and no check is an assert."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hub_server import MODEL, Hub, Served, hub_server, layer, repository
from packages import PACKAGES

from satchel.errors import RequestError
from satchel.store import Store
from satchel.store.names import check_digest, parse
from satchel.store.registry import read_manifest

ROOT = Path(__file__).parents[3]
HEX = "0123456789abcdef" * 4

D01 = [
    "sha256:../../etc/x",
    f"sha256:{HEX[:-1]}",
    f"sha256:{HEX}0",
    f"sha256:{HEX.upper()}",
    f"sha512:{HEX}",
    f"sha256-{HEX}",
    f"sha256:{HEX}\n",
    f" sha256:{HEX}",
    "sha256:" + "０" * 64,
    "sha256:",
    "",
    HEX,
    None,
    7,
    ["sha256:" + HEX],
]


@pytest.mark.parametrize("digest", D01)
def test_d01_a_digest_is_a_digest(digest: Any, hub: Hub, store: Store, model: bytes) -> None:
    with pytest.raises(RequestError, match=r"digest: expected sha256: and 64 lower-case hexadecimal digits"):
        check_digest(digest, "x")
    hub.put_ollama("library/m", "latest", model)
    hub.put_json(
        "/v2/library/m/manifests/latest",
        {"layers": [{"mediaType": MODEL, "digest": digest, "size": len(model)}]},
    )
    with pytest.raises(RequestError, match=r"layer 0: digest: expected sha256"):
        store.pull("ollama:m")
    assert hub.paths() == ["/v2/library/m/manifests/latest"] and not store.root.exists()


@pytest.mark.parametrize("digest", ["../../x", HEX.upper(), HEX[1:], "", None, 1])
def test_d01_a_digest_of_the_hub(digest: Any, hub: Hub, store: Store, model: bytes) -> None:
    files = repository({"m.gguf": model})
    files["siblings"][1]["lfs"]["sha256"] = digest
    hub.put_json("/api/models/u/r", files)
    with pytest.raises(RequestError, match=r"digest: expected sha256"):
        store.pull("hf:u/r")


D02 = [
    "hf:../r",
    "hf:u/..",
    "hf:u/../../etc",
    "hf:u\\r/x",
    "hf:u/r\0",
    "hf:u/CON",
    "hf:nul/r",
    "hf:u/com1.gguf",
    "hf:C:/x",
    "hf:u/r:../q",
    "hf:u/r:",
    "hf:u/r/../x.gguf",
    "hf:u/r/CON.gguf",
    "hf:u/r/x.bin",
    "hf:/r",
    "hf:u",
    "hf:",
    "hf:u/" + "r" * 4096,
    "hf:u/" + "r" * 300,
    "hf:u/.git",
    "hf:ü/r",
    "hf:u/r.",
    "hf:u/r x",
    "ollama:..",
    "ollama:a/../b",
    "ollama:m:../t",
    "ollama:m:",
    "ollama:",
    "ollama:h/s/m/x",
    "ollama:../s/m",
    "ollama:һuggingface.co/s/m",
    "https://һuggingface.co/x.gguf",
    "https://user@huggingface.co/x.gguf",
    "https://huggingface.co:pw@evil.example/x.gguf",
    "https://huggingface.co\\@evil.example/x.gguf",
    "https://evil.example/../x.gguf",
    "https://evil.example/%2e%2e/x.gguf",
    "https://evil.example/a%2fb%5c..%5cx.gguf",
    "https://evil.example/a%00.gguf",
    "https://evil.example/NUL.gguf",
    "https://evil.example/x",
    "https://evil.example/",
    "https:///x.gguf",
    "https://[::1/x.gguf",
    "https://a..b/x.gguf",
    "https://evil.example:99999/x.gguf",
    "http://huggingface.co/x.gguf",
    "ftp://huggingface.co/x.gguf",
    "file:///etc/x.gguf",
    "javascript://x/y.gguf",
]


@pytest.mark.parametrize("name", D02)
def test_d02_a_name_is_safe_or_refused(name: str, hub: Hub, store: Store) -> None:
    with pytest.raises(RequestError, match=r"^name ") as error:
        parse(name)
    assert "\n" not in str(error.value) and str(error.value).isascii() and len(str(error.value)) < 500
    for use in (store.pull, store.find, store.remove, lambda text: store.copy(text, "x")):
        with pytest.raises(RequestError):
            use(name)
    assert hub.asked == [] and not store.root.exists()


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "CON", "a\\b", "", "x" * 300, "C:x", "ü", "a\0"])
def test_d02_a_new_name_is_safe(name: str, store: Store, tmp_path: Path, model: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(model)
    with pytest.raises(RequestError):
        store.copy(str(tmp_path / "m.gguf"), name)


@pytest.mark.parametrize(
    "path", ["../x.gguf", "a/../../x.gguf", "/etc/x.gguf", "a\\x.gguf", "NUL.gguf", "é.gguf"]
)
def test_d02_d12_a_file_of_a_repository_stays_in_the_store(
    path: str, hub: Hub, store: Store, model: bytes, tmp_path: Path
) -> None:
    hub.put_repo("u/r", {path: model})
    with pytest.raises(RequestError, match=r"^name .*: expected parts of"):
        store.pull("hf:u/r")
    assert list(tmp_path.rglob("*.gguf")) == []


LAYER = {"mediaType": MODEL, "digest": f"sha256:{HEX}", "size": 5}
D03: list[Any] = [
    None,
    [],
    {},
    7,
    {"layers": None},
    {"layers": []},
    {"layers": {}},
    {"layers": [None]},
    {"layers": ["x"]},
    {"layers": [[]]},
    {"layers": [LAYER | {"size": -1}]},
    {"layers": [LAYER | {"size": 0}]},
    {"layers": [LAYER | {"size": False}]},
    {"layers": [LAYER | {"size": True}]},
    {"layers": [LAYER | {"size": 1.5}]},
    {"layers": [LAYER | {"size": "5"}]},
    {"layers": [LAYER | {"size": 2**63}]},
    {"layers": [LAYER | {"mediaType": None}]},
    {"layers": [LAYER | {"mediaType": "application/x"}]},
    {"layers": [LAYER, LAYER]},
    {"layers": [LAYER] * 1000},
]


@pytest.mark.parametrize("manifest", D03)
def test_d03_a_manifest_that_is_none(manifest: Any, hub: Hub, store: Store) -> None:
    hub.put_json("/v2/library/m/manifests/latest", manifest)
    with pytest.raises(RequestError):
        store.pull("ollama:m")
    assert len(hub.asked) == 1 and not store.root.exists()


def test_d03_a_million_layers_and_a_deep_one(hub: Hub, store: Store) -> None:
    for body in (b'{"layers":[' + b"{}," * 2_000_000 + b"{}]}", b"[" * 200_000, b"{", b"\xff", b"NaN"):
        hub.files["/v2/library/m/manifests/latest"] = Served(body, ranges=False)
        with pytest.raises(RequestError):
            store.pull("ollama:m")
    with pytest.raises(RequestError, match="expected 1 to 64 layers, got 1000000"):
        read_manifest({"layers": [LAYER] * 10**6}, "x")


def test_d03_a_false_size(hub: Hub, store: Store, model: bytes) -> None:
    hub.put_ollama("library/m", "latest", model)
    wrong = layer((MODEL, model)) | {"size": len(model) - 1}
    hub.put_json("/v2/library/m/manifests/latest", {"layers": [wrong]})
    with pytest.raises(RequestError, match=f"expected {len(model) - 1} bytes, the server has {len(model)}"):
        store.pull("ollama:m")


def test_d04_no_token_goes_to_another_realm(hub: Hub, environ: dict[str, str]) -> None:
    with hub_server() as other:
        says = {"WWW-Authenticate": f'Bearer realm="{other.url}/token",service="x"'}
        for path in ("/v2/library/m/manifests/latest", "/api/models/u/r"):
            hub.files[path] = Served(status=401, headers=says)
        trusting = {"HF_TOKEN": "secret", "SATCHEL_TRUSTED_HOSTS": other.url}
        store = Store(environ=environ | trusting)
        for name in ("ollama:m", "hf:u/r"):
            with pytest.raises(RequestError, match="the server says 401"):
                store.pull(name)
        assert other.asked == [] and len(hub.asked) == 2
        assert "authorization" not in hub.asked[0][1]  # no token of the hub is sent to a registry


def test_d11_no_check_is_an_assert() -> None:
    """python -O removes asserts, and with them the checks."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert)
    ]
    assert found == []


def test_d11_what_is_refused_is_refused_under_python_o(tmp_path: Path) -> None:
    code = (
        "from satchel.store.names import check_digest, parse\n"
        "from satchel.errors import RequestError\n"
        f"uses = [(parse, name) for name in {D02!r}]\n"
        f"uses += [(lambda digest: check_digest(digest, 'x'), digest) for digest in {D01!r}]\n"
        "count = 0\n"
        "for use, bad in uses:\n"
        "    try:\n        use(bad)\n"
        "    except RequestError:\n        count += 1\n"
        "print(count)\n"
    )
    flags = ["-S"] if sys.flags.no_site else []
    done = subprocess.run([sys.executable, "-O", *flags, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == str(len(D01) + len(D02)), done.stderr
