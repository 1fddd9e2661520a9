"""Models of other programs, read in place, and the resolution of model names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hub_server import MODEL, Hub, layer, sha

from satchel.errors import ModelError, RequestError, SatchelError
from satchel.store import Store, StoredModel
from satchel.store.finding import matching


def put_hub(environ: dict[str, str], data: bytes, repo: str = "u--r", file: str = "r-Q4_K_M.gguf") -> Path:
    """A file in Hugging Face's cache: a link in a snapshot to a blob."""
    folder = Path(environ["HF_HOME"]) / "hub" / f"models--{repo}"
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    (folder / "blobs" / sha(data)).write_bytes(data)
    link = folder / "snapshots" / "abc123" / file
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder / "blobs" / sha(data))
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text("abc123")
    return link


def put_ollama(environ: dict[str, str], data: bytes, name: str = "library/tiny", tag: str = "latest") -> Path:
    root = Path(environ["OLLAMA_MODELS"])
    blob = root / "blobs" / f"sha256-{sha(data)}"
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(data)
    manifest = root / "manifests" / "registry.ollama.ai" / name / tag
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"layers": [layer((MODEL, data))]}))
    return blob


def put_lmstudio(environ: dict[str, str], data: bytes) -> Path:
    path = Path(environ["HOME"]) / ".lmstudio" / "models" / "pub" / "repo" / "m-Q8_0.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def put_folder(environ: dict[str, str], data: bytes) -> Path:
    folder = Path(environ["HOME"]) / "gguf"
    folder.mkdir(parents=True, exist_ok=True)
    environ["SATCHEL_FOLDERS"] = str(folder)
    (folder / "mine.gguf").write_bytes(data)
    return folder / "mine.gguf"


@pytest.mark.parametrize(
    ("put", "place", "name", "shorter"),
    [
        (put_hub, "huggingface", "hf:u/r:Q4_K_M", ["u/r", "hf:u/r", "r", "r:Q4_K_M", "hf:u/r:q4_k_m"]),
        (put_ollama, "ollama", "ollama:tiny:latest", ["tiny", "tiny:latest", "ollama:tiny"]),
        (put_lmstudio, "lmstudio", "lmstudio:pub/repo:Q8_0", ["pub/repo", "repo", "m-Q8_0", "pub/repo:Q8_0"]),
        (put_folder, "folder", "mine", ["mine.gguf"]),
    ],
)
def test_a_model_is_read_where_it_lies(
    put: Callable[[dict[str, str], bytes], Path],
    place: str,
    name: str,
    shorter: list[str],
    environ: dict[str, str],
    model: bytes,
    hub: Hub,
) -> None:
    path = put(environ, model)
    store = Store(environ=environ)
    entry, bundled = store.list()
    assert bundled.place == "bundled"
    assert (entry.name, entry.place, entry.path, entry.size) == (name, place, path, len(model))
    assert entry.sha256 == (sha(model) if place in ("huggingface", "ollama") else "")
    for text in (name, *shorter):
        assert store.find(text) == path
    with pytest.raises(RequestError, match=r"lies in .*, which is not the store's; it is not removed"):
        store.remove(name)
    assert path.exists() and not store.root.exists() and hub.asked == []


def test_what_is_in_a_cache_is_not_pulled_again(
    hub: Hub, store: Store, environ: dict[str, str], model: bytes, other_model: bytes
) -> None:
    hub.put_repo("u/r", {"r-Q4_K_M.gguf": model})
    hub.put_ollama("library/tiny", "latest", model)
    link, blob = put_hub(environ, model), put_ollama(environ, model)
    assert store.pull("hf:u/r") == link and store.pull("ollama:tiny") == blob
    assert [path for path in hub.paths() if "resolve" in path or "blobs" in path] == []
    hub.put_repo("u/r", {"r-Q4_K_M.gguf": other_model})  # newer than the cached one
    assert (
        store.pull("hf:u/r").is_relative_to(store.root) and store.find("hf:u/r").read_bytes() == other_model
    )


def test_offline_finds_and_opens_nothing(
    hub: Hub, environ: dict[str, str], model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.put_repo("u/r", {"r-Q4_K_M.gguf": model})
    hub.put_repo("u/other", {"r-Q4_K_M.gguf": model})
    path = Store(environ=environ).pull("hf:u/r")
    hub.asked.clear()
    monkeypatch.setattr("satchel.store.web.Web.open", lambda *a, **k: pytest.fail("a connection"))
    stores = [Store(environ=environ | {name: "1"}) for name in ("SATCHEL_OFFLINE", "HF_HUB_OFFLINE")]
    for store in (*stores, Store(environ=environ, offline=True)):
        assert store.pull("hf:u/r") == store.find("r") == path
        with pytest.raises(RequestError, match="hf:u/other: offline, and not in the store"):
            store.pull("hf:u/other")
    assert hub.asked == [] and not Store(environ=environ | {"HF_HUB_OFFLINE": "0"}).offline


def test_a_place_that_is_damaged_has_fewer_models(environ: dict[str, str], model: bytes) -> None:
    put_hub(environ, model)
    hub, ollama = Path(environ["HF_HOME"]) / "hub", Path(environ["OLLAMA_MODELS"])
    for repo in ("models--x", "models--a--b", "models--..--b", "datasets--a--b", "models--c--d--e"):
        (hub / repo / "refs").mkdir(parents=True)
        (hub / repo / "refs" / "main").write_text("../../../..")
    (hub / "models--u--r" / "snapshots" / "abc123" / "gone.gguf").symlink_to(hub / "nowhere")
    (hub / "models--u--r" / "snapshots" / "abc123" / "loop").symlink_to(hub)
    for index, text in enumerate(["", "{", "[]", '{"layers":[{"digest":"sha256:../x"}]}', "[" * 99_999]):
        path = ollama / "manifests" / "registry.ollama.ai" / "library" / "m" / f"t{index}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (ollama / "manifests" / "stray").write_text("x")
    put_ollama(environ, model).unlink()
    assert [entry.name for entry in Store(environ=environ).list()][:-1] == ["hf:u/r:Q4_K_M"]


def test_a_set_in_a_folder_is_one_model(environ: dict[str, str], parts: dict[str, bytes]) -> None:
    folder = put_folder(environ, b"x").parent
    for name, data in parts.items():
        (folder / name).write_bytes(data)
    store = Store(environ=environ)
    assert store.find("big-Q4_K_M") == folder / next(iter(parts))
    assert len(store.entry("big-Q4_K_M").paths) == len(parts)
    (folder / list(parts)[-1]).unlink()
    with pytest.raises(RequestError, match="no file and no model of that name"):
        store.find("big-Q4_K_M")


def entries(*names: str) -> list[StoredModel]:
    paths = [Path(f"x/{name.split('/')[-1].replace(':', '-')}.gguf") for name in names]
    return [StoredModel(name, "store", (path,), 1, 0.0) for name, path in zip(names, paths, strict=True)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("hf:u/r", ["hf:u/r:Q4_K_M"]),
        ("hf:u/r:Q8_0", ["hf:u/r:Q8_0"]),
        ("u/r:Q8_0", ["hf:u/r:Q8_0"]),
        ("r", ["hf:u/r:Q4_K_M"]),
        ("hf:u/s", ["hf:u/s:Q5_0", "hf:u/s:Q6_K"]),
        ("s:Q6_K", ["hf:u/s:Q6_K"]),
        ("llama3.2:1b", ["ollama:llama3.2:1b"]),
        ("llama3.2", ["ollama:llama3.2:latest"]),
        ("llama", []),
        ("hf:u", None),
        ("hf:u/rr", []),
        ("", None),
    ],
)
def test_which_model_a_name_means(text: str, found: list[str] | None) -> None:
    names = ["hf:u/r:Q4_K_M", "hf:u/r:Q8_0", "hf:u/s:Q5_0", "hf:u/s:Q6_K"]
    known = entries(*names, "ollama:llama3.2:1b", "ollama:llama3.2:latest")
    if found is None:
        with pytest.raises(RequestError):
            matching(text, known)
    else:
        assert [entry.name for entry in matching(text, known)] == found


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("min", RequestError, "no file and no model of that name; did you mean mine?"),
        ("hf:a/b", RequestError, "hf:a/b: not in the store; `satchel pull hf:a/b` gets it"),
        ("none.gguf", ModelError, "none.gguf: can't be read: No such file"),
        ("./none", ModelError, "can't be read: No such file"),
        ("x" * 5000, RequestError, "expected 1 to 1024 characters"),
        ("", RequestError, "expected 1 to 1024 characters"),
    ],
)
def test_a_name_of_nothing_says_what_to_do(
    name: str, kind: type[SatchelError], message: str, environ: dict[str, str], model: bytes
) -> None:
    put_folder(environ, model)
    with pytest.raises(kind) as error:
        Store(environ=environ).find(name)
    assert message in str(error.value)


def test_a_second_name(hub: Hub, store: Store, environ: dict[str, str], model: bytes) -> None:
    hub.put_repo("u/r", {"r-Q4_K_M.gguf": model})
    path, mine = store.pull("hf:u/r"), put_folder(environ, model)
    assert store.copy("hf:u/r", "one").name == "one" and store.find("one") == path
    assert store.copy(str(mine), "two").path == store.find("two") == mine
    with pytest.raises(RequestError, match="expected a new name, got that of a model"):
        store.copy("r", "two")
    store.remove("hf:u/r")
    assert store.find("one") == path and path.exists()
    store.remove("one")
    assert not path.exists() and [p.name for p in store.root.iterdir() if p.is_dir()] == [".locks"]
    mine.write_bytes(model[:-1] + b"x")
    with pytest.raises(RequestError, match=r"two: .* changed since it was pulled"):
        store.find("two")
    store.remove("two")
    assert mine.exists()


@pytest.mark.parametrize(
    "text",
    [
        "x = ",
        "version = 2",
        "version = 1\nmodel = 3",
        "version = 1\n[[model]]\nname = 'a'",
        "version = 1\n[[model]]\nname = 'a'\nfile = []",
        "version = 1\n[[model]]\nname = ''\n[[model.file]]\npath = 'a'",
        "version = 1\n[[model]]\nname = 'a'\n[[model.file]]\npath = 'a'\nsize = -1\nsha256 = 'x'",
        "version = 1\n[[model]]\nname = 'a'\n[[model.file]]\npath = 'a'\nsize = 1\nsha256 = 'x'",
        "version = 1\n[[model]]\nname = 'a'\n[[model.file]]\npath = 7\nsize = 1\nsha256 = 'x'",
        "version = 1\n[[model]]\nname = 'a\\u001b'\n[[model.file]]\npath = 'a'",
        "\xff",
    ],
)
def test_a_lock_file_that_is_none(text: str, store: Store) -> None:
    store.root.mkdir()
    (store.root / "models.lock").write_bytes(text.encode("latin-1"))
    with pytest.raises(RequestError, match=r"models.lock: .*; mend the file"):
        store.list()
