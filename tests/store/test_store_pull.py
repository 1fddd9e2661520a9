"""Pulls from a well-behaved server: names, split sets, quantizations, the lock file, present files."""

from __future__ import annotations

import threading
import tomllib
from pathlib import Path

import pytest
from hub_server import COMMIT, Hub, Served, sha

from satchel.errors import RequestError
from satchel.formats.gguf import open_gguf
from satchel.store import Progress, Store

URL = "/files/tiny.gguf"


def test_a_hub_repository_is_pulled_and_pinned(hub: Hub, store: Store, model: bytes) -> None:
    hub.put_repo("u/r", {"r-Q4_K_M.gguf": model, "r-Q8_0.gguf": model + b"\0" * 32})
    seen: list[Progress] = []
    path = store.pull("hf:u/r", seen.append)
    assert path.read_bytes() == model and path.is_relative_to(store.root / hub_folder(hub) / "u" / "r")
    assert store.find("hf:u/r") == store.find("hf:u/r:q4_k_m") == store.find("u/r") == store.find("r") == path
    assert (seen[-1].done, seen[-1].total, seen[-1].sha256) == (len(model), len(model), sha(model))
    with open_gguf(path) as gguf:
        template = sha(str(gguf.metadata["tokenizer.chat_template"]).encode())
    locked = tomllib.loads((store.root / "models.lock").read_text())
    assert locked["model"] == [
        {
            "name": "hf:u/r:Q4_K_M",
            "licence": "mit",
            "template": template,
            "file": [
                {
                    "path": f"{hub_folder(hub)}/u/r/r-Q4_K_M.gguf",
                    "url": f"{hub.url}/u/r/resolve/{COMMIT}/r-Q4_K_M.gguf",
                    "size": len(model),
                    "sha256": sha(model),
                }
            ],
        }
    ]
    assert {p.name for p in store.root.iterdir()} == {
        hub_folder(hub),
        "models.lock",
        ".locks",
        ".stamps.json",
    }
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def hub_folder(hub: Hub) -> str:
    return hub.url.removeprefix("http://").replace(":", "_")


def test_a_set_is_pulled_together(hub: Hub, store: Store, parts: dict[str, bytes]) -> None:
    assert len(parts) > 2
    hub.put_repo("u/big", {f"Q4_K_M/{name}": data for name, data in parts.items()})
    path = store.pull("hf:u/big:Q4_K_M")
    assert path.name == next(iter(parts))
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == parts
    with open_gguf(path) as gguf:
        assert len(gguf.parts) == len(parts)
    assert len(store.entry("hf:u/big").paths) == len(parts)


def test_a_set_that_lacks_a_part_is_refused(hub: Hub, store: Store, parts: dict[str, bytes]) -> None:
    hub.put_repo("u/big", dict(list(parts.items())[:-1]))
    with pytest.raises(RequestError, match=r"expected \d+ parts, got \d+: '.*' is missing"):
        store.pull("hf:u/big")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:u/r", r"expected one model, got 3; name one as hf:u/r:QUANT .*: there is IQ2_XS, Q5_K_M, Q8_0"),
        ("hf:u/r:Q3_K_S", r"no such file; there is IQ2_XS, Q5_K_M, Q8_0"),
        ("hf:u/r/none.gguf", r"no such file; there is"),
        ("hf:u/none", r"the server says 404: no such model or file"),
        ("hf:u/empty", r"expected a repository with GGUF files, got one without"),
        ("nothing", r"the server says 404: no such model or file"),
        (
            "./nothing",
            r"expected hf:USER/REPO\[:QUANT\], ollama:NAME\[:TAG\] or https://HOST/FILE.gguf to pull",
        ),
    ],
)
def test_what_cannot_be_chosen_says_what_there_is(
    name: str, message: str, hub: Hub, store: Store, model: bytes
) -> None:
    files = [f"r-{q}.gguf" for q in ("Q8_0", "IQ2_XS", "Q5_K_M")]
    hub.put_repo("u/r", dict.fromkeys([*files, "mmproj-F16.gguf"], model))
    hub.put_repo("u/empty", {})
    with pytest.raises(RequestError, match=message):
        store.pull(name)
    assert [entry.place for entry in store.list()] == ["bundled"]


def test_a_file_of_a_repository_by_its_path(hub: Hub, store: Store, model: bytes) -> None:
    hub.put_repo("u/r", {"a/x.gguf": model, "b/x.gguf": model})
    assert store.pull("hf:u/r/b/x.gguf").parts[-2:] == ("b", "x.gguf")
    assert [entry.name for entry in store.list()][:-1] == ["hf:u/r/b/x.gguf"]


def test_an_address_is_pulled(hub: Hub, store: Store, model: bytes) -> None:
    hub.files[URL] = Served(model)
    path = store.pull(hub.url + URL)
    assert path.read_bytes() == model and store.find(hub.url + URL) == store.find("tiny") == path
    assert store.entry("tiny").licence == "apache-2.0"


def test_a_model_of_the_registry(hub: Hub, store: Store, model: bytes) -> None:
    hub.put_ollama("library/tiny", "latest", model, "\n  MIT License\n\nCopyright")
    path = store.pull("ollama:tiny")
    assert path.read_bytes() == model
    assert store.find("tiny") == store.find("tiny:latest") == store.find("ollama:tiny:latest") == path
    assert store.entry("tiny").licence == "MIT License"


def test_what_is_there_is_not_fetched_again(hub: Hub, store: Store, model: bytes) -> None:
    hub.put_repo("u/r", {"r-Q4_0.gguf": model})
    hub.files[URL] = Served(model)
    store.pull("hf:u/r")
    store.pull(hub.url + URL)
    hub.asked.clear()
    assert store.pull("hf:u/r").read_bytes() == store.pull(hub.url + URL).read_bytes() == model
    ranges = [headers["range"] for path, headers in hub.asked if path != "/api/models/u/r"]
    assert ranges == ["bytes=0-0"]  # only the ETag identifies a URL's version


def test_a_file_that_was_changed_here_is_refused_and_mended(hub: Hub, store: Store, model: bytes) -> None:
    hub.put_repo("u/r", {"r-Q4_0.gguf": model})
    path = store.pull("hf:u/r")
    path.write_bytes(model[:-1] + bytes([model[-1] ^ 1]))
    for name in ("hf:u/r", "r", str(path)):
        with pytest.raises(RequestError, match=r"changed since it was pulled: models.lock says sha256"):
            store.find(name)
    assert store.pull("hf:u/r").read_bytes() == model and store.find("r") == path
    path.unlink()
    with pytest.raises(RequestError, match=r"is gone; `satchel pull` gets it again"):
        store.find("r")
    assert store.pull("hf:u/r").read_bytes() == model


def test_a_file_that_was_only_touched_is_taken(hub: Hub, store: Store, model: bytes) -> None:
    hub.put_repo("u/r", {"r-Q4_0.gguf": model})
    path = store.pull("hf:u/r")
    path.touch()
    hashed: list[int] = []
    assert store.find("r", lambda done, total: hashed.append(done)) == path and hashed[-1] == len(model)
    hashed.clear()
    assert store.find("r", lambda done, total: hashed.append(done)) == path and hashed == []


def test_two_pulls_at_once_fetch_once(hub: Hub, store: Store, model: bytes) -> None:
    hub.put_repo("u/r", {"r-Q4_0.gguf": model})
    found: list[Path] = []
    pulls = [threading.Thread(target=lambda: found.append(store.pull("hf:u/r"))) for _ in range(4)]
    for pull in pulls:
        pull.start()
    for pull in pulls:
        pull.join()
    assert len(found) == 4 and len(set(found)) == 1 and found[0].read_bytes() == model
    served = [h["range"] for path, h in hub.asked if "resolve" in path]
    assert len(served) == len(set(served))


def test_the_token_goes_to_the_hub(hub: Hub, environ: dict[str, str], model: bytes) -> None:
    hub.put_repo("u/r", {"r-Q4_0.gguf": model})
    Store(environ=environ | {"HF_TOKEN": "secret"}).pull("hf:u/r")
    assert {headers.get("authorization") for _, headers in hub.asked} == {"Bearer secret"}
    assert "secret" not in (Path(environ["SATCHEL_MODELS"]) / "models.lock").read_text()
