"""Ollama's registry protocol: a manifest lists layers by digest, and one of them is the GGUF file.

Only the model and its licence are fetched; the chat template is the one in the GGUF file. No token is
requested or sent, even if the server's WWW-Authenticate asks for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from satchel.errors import RequestError
from satchel.store.names import OLLAMA_HOST, OllamaName, check_digest, folder_of
from satchel.store.remote import Remote, RemoteModel, check_size, registry_endpoint

if TYPE_CHECKING:
    from satchel.store.web import Web

ACCEPT = "application/vnd.docker.distribution.manifest.v2+json"
KIND = "application/vnd.ollama.image."
MANIFEST_LIMIT, LICENCE_LIMIT = 1 << 22, 1 << 18  # bytes
LAYERS_LIMIT = 64


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a manifest."""

    kind: str  # the media type without KIND: model, license, ...
    sha256: str  # 64 hexadecimal digits
    size: int


def resolve(name: OllamaName, web: Web, environ: Mapping[str, str]) -> RemoteModel:
    """The registry's model file for the name."""
    own = name.host == OLLAMA_HOST
    base = registry_endpoint(environ) if own else f"https://{name.host}"
    place = f"{base}/v2/{name.space}/{name.model}"
    raw = web.json(f"{place}/manifests/{name.tag}", headers={"accept": ACCEPT}, limit=MANIFEST_LIMIT)
    layers = read_manifest(raw, str(name))
    model = model_layer(layers, str(name))
    split = urlsplit(base)
    host = folder_of(split.hostname or "", split.port)
    file = f"{host}/{name.space}/{name.model}/{name.tag}.gguf"
    url = f"{place}/blobs/sha256:{model.sha256}"
    return RemoteModel(
        str(name), (Remote(url, file, model.size, model.sha256),), _licence(web, place, layers)
    )


def read_manifest(raw: Any, where: str) -> list[Layer]:
    """The layers of a manifest. RequestError where a layer is invalid."""
    listed = raw.get("layers") if isinstance(raw, dict) else None
    if not isinstance(listed, list) or not 1 <= len(listed) <= LAYERS_LIMIT:
        got = len(listed) if isinstance(listed, list) else "none"
        raise RequestError(f"{where}: manifest: expected 1 to {LAYERS_LIMIT} layers, got {got}")
    return [_layer(entry, f"{where}: layer {index}") for index, entry in enumerate(listed)]


def _layer(entry: Any, where: str) -> Layer:
    if not isinstance(entry, dict) or not isinstance(entry.get("mediaType"), str):
        raise RequestError(f"{where}: expected a media type, a digest and a size, got {entry!r:.60}")
    kind = entry["mediaType"].removeprefix(KIND)
    return Layer(kind, check_digest(entry.get("digest"), where), check_size(entry.get("size"), where))


def model_layer(layers: list[Layer], where: str) -> Layer:
    """The model's layer. RequestError unless there is exactly one, without an adapter."""
    models = [layer for layer in layers if layer.kind == "model"]
    if any(layer.kind == "adapter" for layer in layers):
        raise RequestError(f"{where}: made of a model and an adapter, which are not put together here")
    if len(models) != 1:
        raise RequestError(f"{where}: expected a manifest with one GGUF model, got {len(models)}")
    return models[0]


def _licence(web: Web, place: str, layers: list[Layer]) -> str:
    """The first printable line of the licence; "" without one."""
    found = next((layer for layer in layers if layer.kind == "license"), None)
    if found is None or found.size > LICENCE_LIMIT:
        return ""
    from satchel.store.web import Interrupted

    try:
        with web.open(f"{place}/blobs/sha256:{found.sha256}") as answer:
            text = answer.read(LICENCE_LIMIT) if answer.status == 200 else b""
    except Interrupted:
        return ""
    lines = (line.strip() for line in text.decode("utf-8", "replace").splitlines())
    return next((line[:200] for line in lines if line and line.isprintable()), "")
