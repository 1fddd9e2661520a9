"""Generates docs/coming-from.md: what Ollama's commands and routes and vLLM's flags are here, from the
commands, their options and the routes of the program.

`python tests/support/coming_page.py` writes the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_type_hints

from doc_tables import code, table
from fastapi.routing import APIRoute
from pydantic import BaseModel

from satchel.cli.main import commands, summary
from satchel.server.app import routed
from satchel.server.ollama.options import OllamaOptions, Unused

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"
HEAD = """# Coming from Ollama or vLLM

<!-- `python tests/support/coming_page.py` writes this page; a test keeps it current. -->

Flags of llama.cpp have [a page of their own](llama-cpp-flags.md). Models that Ollama, LM Studio and
Hugging Face's programs have pulled are used where they lie ([store](store.md#models-that-are-there-already)).

"""


@dataclass(frozen=True, slots=True)
class Row:
    """theirs: what is typed there. ours: the same here, "" where there is nothing of the kind. text: a
    difference, or why there is nothing.
    """

    theirs: str
    ours: str
    text: str = ""


OLLAMA = (
    Row("ollama run MODEL", "satchel run MODEL"),
    Row("ollama run MODEL PROMPT", "satchel run MODEL PROMPT"),
    Row("ollama run MODEL --verbose", "satchel run MODEL -v"),
    Row("ollama run MODEL --format json", "satchel run MODEL --json-mode", "`--json-schema` takes a schema"),
    Row("ollama run MODEL --think=false", "satchel run MODEL --reasoning off"),
    Row("ollama serve", "satchel serve --ollama-port 11434", "without the option, port 8080"),
    Row("ollama pull MODEL", "satchel pull MODEL"),
    Row("ollama list", "satchel list", "Ollama's own models too"),
    Row("ollama show MODEL", "satchel show MODEL"),
    Row("ollama show MODEL --template", "satchel show MODEL --template"),
    Row("ollama show MODEL --license", "satchel show MODEL --license"),
    Row("ollama ps", "satchel ps"),
    Row("ollama stop MODEL", "satchel stop MODEL"),
    Row("ollama cp SOURCE NAME", "satchel cp SOURCE NAME"),
    Row("ollama rm MODEL", "satchel rm MODEL"),
    Row("ollama create NAME -f Modelfile", "satchel create NAME -f Modelfile"),
    Row("ollama create -q q4_K_M", "satchel quantize MODEL FILE Q4_K_M"),
    Row("ollama push MODEL", "", "nothing is uploaded"),
    Row("ollama signin", "", "there is no account"),
    Row("ollama signout", "", "there is no account"),
)
# The routes of Ollama's documentation.
ROUTES = (
    "POST /api/generate",
    "POST /api/chat",
    "POST /api/embed",
    "POST /api/embeddings",
    "POST /api/create",
    "POST /api/show",
    "POST /api/copy",
    "POST /api/pull",
    "POST /api/push",
    "DELETE /api/delete",
    "GET /api/tags",
    "GET /api/ps",
    "GET /api/version",
    "HEAD /api/blobs/{digest}",
    "POST /api/blobs/{digest}",
)
VLLM = (
    Row("vllm serve MODEL", "satchel serve -m MODEL", "a GGUF file, or a name of `satchel list`"),
    Row("--host", "--host"),
    Row("--port", "--port", "8080 where not given"),
    Row("--uds", "--host", "a path that ends in .sock"),
    Row("--api-key", "--api-key"),
    Row("--ssl-keyfile", "--ssl-key-file"),
    Row("--ssl-certfile", "--ssl-cert-file"),
    Row("--allowed-origins", "--cors-origins"),
    Row("--served-model-name", "--alias"),
    Row("--max-model-len", "-c"),
    Row("--max-num-seqs", "--parallel"),
    Row("--max-num-batched-tokens", "-ub"),
    Row("--gpu-memory-utilization", "--gpu-memory", "bytes such as 20GB, and not a share"),
    Row("--cpu-offload-gb", "-ngl", "layers on the GPU; the others stay on the CPU"),
    Row("--kv-cache-dtype", "-ctk", "keys; `-ctv` for values: f16, bf16, f32, q8_0, fp8, q4_0"),
    Row(
        "--tensor-parallel-size",
        "-sm",
        "`tensor`, among the devices of `-dev` ([what runs today](parallel.md#what-runs-today))",
    ),
    Row(
        "--pipeline-parallel-size",
        "-dev",
        "`-dev cuda,cuda:1`, also of another host, `host2/cuda` ([pipelines](pipelines.md)); `-ts` gives the "
        "shares",
    ),
    Row(
        "--data-parallel-size",
        "--replicas",
        "engines that share the requests; of several hosts `--engine-host` ([fleets](fleet.md))",
    ),
    Row("--dtype", "", "the file has its formats; `satchel convert` has `--outtype`"),
    Row("--quantization", "", "the file has its formats; `satchel quantize` writes others"),
    Row("--load-format", "", "GGUF alone; `satchel convert` reads checkpoints"),
    Row("--tokenizer", "", "the file's own"),
    Row("--trust-remote-code", "", "a model file has no code that could be run"),
    Row("--enable-prefix-caching", "", "always on; `cache_salt` of a request keeps it apart"),
    Row("--enable-chunked-prefill", "", "always on"),
    Row("--enforce-eager", "", "a plan is captured as a CUDA graph without a switch"),
    Row("--chat-template", "--chat-template-file", "`--chat-template` takes the text itself"),
    Row(
        "--reasoning-parser",
        "",
        "chosen by the model's template; `--reasoning-format` says where thinking goes",
    ),
    Row("--tool-call-parser", "", "chosen by the model's template"),
    Row("--enable-auto-tool-choice", "", "always on"),
    Row("--guided-decoding-backend", "", "there is one, which fails closed"),
    Row("--lora-modules", "--lora", "`--lora-scaled FILE:SCALE` for another scale"),
    Row("--enable-lora", "", "`--lora` is enough"),
    Row("--speculative-config", "--lookup", "n-gram lookup; `-md FILE` for a draft model"),
    Row("--seed", "--seed", "for requests that leave it out"),
    Row("--override-generation-config", "--temp", "one flag for each option, such as `--top-k`"),
    Row("--disable-log-requests", "--log-level", "requests are logged from `info` on"),
    Row("--root-path", "", "`--trusted-proxy` names a proxy; the prefix is the proxy's to take off"),
    Row("--swap-space", "-cram", "MiB of host memory for what the cache gives up"),
)


def bodies() -> dict[str, tuple[str, ...]]:
    """The fields of the body of each route of Ollama's API, by method and path."""
    found = {}
    for module in routed():
        for route in module.router.routes:
            if isinstance(route, APIRoute) and route.path.startswith("/api/"):
                for method in route.methods:
                    found[f"{method} {route.path}"] = fields(route)
    return found


def fields(route: APIRoute) -> tuple[str, ...]:
    """The names of a route's body fields, as JSON has them."""
    hints = get_type_hints(route.endpoint)
    body = hints.get("body")
    if body is None or not issubclass(body, BaseModel):
        return ()
    return tuple(field.alias or name for name, field in body.model_fields.items())


def command_table() -> Iterator[str]:
    known, told = commands(), set[str]()
    rows = []
    for row in OLLAMA:
        text, name = row.text, f"{row.ours} ".split(" ")[1]
        if not text and name not in told:
            text = summary(known[name]).rstrip(".")
        told.add(name)
        rows.append((code(row.theirs), code(row.ours), text))
    return table(("Ollama", "here", ""), rows)


def route_table() -> Iterator[str]:
    known = bodies()
    rows = ((code(route), ", ".join(map(code, known[route]))) for route in ROUTES)
    return table(("route", "fields that are read"), rows)


def options() -> Iterator[str]:
    unused = set(Unused.model_fields)
    read = sorted(set(OllamaOptions.model_fields) - unused)
    yield "`options` of a request that are read: " + ", ".join(map(code, read)) + ".\n"
    yield (
        "Named under `warnings`, because they have no effect here: "
        + ", ".join(map(code, sorted(unused)))
        + "."
    )


def flag_table() -> Iterator[str]:
    return table(("vLLM", "`satchel serve`", ""), ((code(r.theirs), code(r.ours), r.text) for r in VLLM))


def page() -> str:
    parts = [
        "## Ollama's commands\n",
        *command_table(),
        "\n## Ollama's API\n",
        "What each field means is in [clients](clients.md#ollama).\n",
        *route_table(),
        "",
        *options(),
        "\n## vLLM's flags\n",
        "The fields of vLLM's requests are in [OpenAI's API](openai.md).\n",
        *flag_table(),
    ]
    return HEAD + "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
