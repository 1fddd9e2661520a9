"""Names as users write them: pasted addresses, Ollama's bare names, USER/REPO of the Hub."""

from __future__ import annotations

import pytest
from hub_server import Hub

from satchel.errors import RequestError
from satchel.store import Store
from satchel.store.meant import meant, pasted

SITE = "https://huggingface.co/u/r-GGUF"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("llama3.2", "ollama:llama3.2:latest"),
        ("llama3.2:1b", "ollama:llama3.2:1b"),
        ("u/r-GGUF", "hf:u/r-GGUF"),
        ("u/r-GGUF:q4_k_m", "hf:u/r-GGUF:Q4_K_M"),
        (SITE, "hf:u/r-GGUF"),
        (f" {SITE}/ ", "hf:u/r-GGUF"),
        (f"{SITE}/tree/main", "hf:u/r-GGUF"),
        (f"{SITE}/blob/main/r-Q4_K_M.gguf", "hf:u/r-GGUF/r-Q4_K_M.gguf"),
        (f"{SITE}/resolve/main/sub/r-Q4_K_M.gguf?download=true", "hf:u/r-GGUF/sub/r-Q4_K_M.gguf"),
        ("hf.co/u/r-GGUF:Q8_0", "hf:u/r-GGUF:Q8_0"),
        ("https://ollama.com/library/llama3.2:1b", "ollama:llama3.2:1b"),
        ("https://ollama.com/library/llama3.2/tags", "ollama:llama3.2:latest"),
        ("ollama.com/someone/model", "ollama:someone/model:latest"),
        ("https://example.com/a/m.gguf", "https://example.com/a/m.gguf"),
        ("hf:u/r", "hf:u/r"),
        ("some.gguf", "some.gguf"),
        ("./folder/x", "./folder/x"),
    ],
)
def test_what_is_meant(text: str, name: str) -> None:
    assert str(meant(text)) == name


def test_an_unsafe_part_is_refused() -> None:
    for text in (
        "https://huggingface.co/../r",
        "https://huggingface.co/u/r/blob/main/../../x.gguf",
        "hf:u/..",
    ):
        with pytest.raises(RequestError):
            meant(text)
    assert pasted("https://huggingface.co/") == "https://huggingface.co/"


def test_a_bare_name_and_a_pasted_address_are_pulled(hub: Hub, store: Store, model: bytes) -> None:
    hub.put_ollama("library/tiny", "latest", model)
    hub.put_repo("u/r", {"r-Q4_K_M.gguf": model})
    assert store.pull("tiny") == store.find("tiny") == store.find("ollama:tiny")
    first = store.pull("https://huggingface.co/u/r/blob/main/r-Q4_K_M.gguf")
    assert first == store.pull("https://huggingface.co/u/r/tree/main") == store.find("u/r")
    assert store.pull("tiny") == store.find("tiny")  # found in the store, without a question to the registry


def test_a_model_of_the_machine_goes_before_the_registry(hub: Hub, store: Store, model: bytes) -> None:
    hub.put_repo("u/r", {"r-Q4_K_M.gguf": model})
    path = store.pull("u/r")
    hub.asked.clear()
    assert store.pull("r") == path and hub.asked == []
