"""A client of a running server: lists its loaded models and unloads one, by Ollama's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from satchel.errors import RequestError
from satchel.store.web import Refused, Web

DEFAULT = "http://127.0.0.1:8080"


class ServerClient:
    """A client of one server. address: HOST:PORT or a URL, "" for the default. key: an API key,
    "" for none.
    """

    def __init__(self, address: str = "", key: str = "") -> None:
        text = (address or DEFAULT).rstrip("/")
        self.url = text if "://" in text else f"http://{text}"
        self._key = key

    @classmethod
    def of(cls, environ: Mapping[str, str], address: str = "") -> ServerClient:
        """A client of the given address, else of SATCHEL_HOST."""
        return cls(address or environ.get("SATCHEL_HOST", ""), environ.get("SATCHEL_API_KEY", ""))

    def models(self) -> list[dict[str, Any]]:
        """The loaded models, as /api/ps lists them."""
        found = self._ask("/api/ps")
        models = found.get("models") if isinstance(found, dict) else None
        if not isinstance(models, list) or not all(isinstance(model, dict) for model in models):
            raise RequestError(f"{self.url}/api/ps: expected a list of models, got something else")
        return models

    def stop(self, name: str) -> None:
        """Unloads a model. RequestError where the server does not have it loaded."""
        loaded = [str(model.get("name", "")) for model in self.models()]
        if name not in loaded and f"{name}:latest" not in loaded:
            there = ", ".join(loaded) or "none"
            raise RequestError(f"{name}: not loaded at {self.url}; loaded: {there}")
        self._ask("/api/generate", {"model": name, "keep_alive": 0, "stream": False})

    def _ask(self, path: str, body: object = None) -> Any:
        web = Web([self.url], timeout=10.0)
        try:
            method = "GET" if body is None else "POST"
            return web.json(self.url + path, token=self._key, method=method, body=body)
        except Refused as error:
            if error.status == 401:
                raise RequestError(f"{self.url}: wants an API key; SATCHEL_API_KEY holds it") from None
            raise RequestError(f"{self.url}{path}: the server says {error.status}") from None
        except RequestError as error:
            raise RequestError(f"{error}; is `satchel serve` running? (SATCHEL_HOST)") from None
        finally:
            web.close()
