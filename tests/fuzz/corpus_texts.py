"""Small inputs of the targets that read text: request bodies, grammars, registry responses, stored files, and
messages of the worker process.
"""

from __future__ import annotations

import json
from typing import Any

from fuzz_readers import message_of
from fuzz_requests import ROUTES
from hub_server import layer, repository

from satchel.runtime.api.options import Options
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.grammar.spec import Choice, JsonSchema
from satchel.runtime.sampling import Sampling
from satchel.runtime.worker.wire import Arrays, encode, encode_error

Inputs = dict[str, bytes]
USER = {"role": "user", "content": "Hi"}
ADD = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "add", "parameters": ADD}}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [USER], "max_tokens": 3, "stream": True, "logprobs": True}),
    "chat-schema": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "system", "content": [{"type": "text", "text": "S"}]}, USER],
            "max_tokens": 8,
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": ADD}},
            "temperature": 0.5,
            "seed": 7,
            "n": 2,
        },
    ),
    "chat-tools": (
        "/v1/chat/completions",
        {"messages": [USER], "tools": [TOOL], "tool_choice": "auto", "max_tokens": 4, "stop": ["x"]},
    ),
    "completions": (
        "/v1/completions",
        {"prompt": ["a", "b"], "max_tokens": 2, "echo": True, "logprobs": 2, "logit_bias": {"5": -1}},
    ),
    "responses": ("/v1/responses", {"input": [USER], "max_output_tokens": 3, "instructions": "Be brief."}),
    "messages": (
        "/v1/messages",
        {"model": "tiny", "max_tokens": 3, "messages": [USER], "system": "S", "stop_sequences": ["z"]},
    ),
    "count": ("/v1/messages/count_tokens", {"model": "tiny", "messages": [USER]}),
    "input-tokens": ("/v1/chat/completions/input_tokens", {"messages": [USER]}),
    "embeddings": ("/v1/embeddings", {"input": ["a b", "c"], "encoding_format": "base64"}),
    "rerank": ("/v1/rerank", {"query": "q", "documents": ["a", {"text": "b"}], "top_n": 1}),
    "score": ("/v1/score", {"text_1": "a", "text_2": ["b"]}),
    "ollama-chat": ("/api/chat", {"model": "tiny", "messages": [USER], "options": {"num_predict": 2}}),
    "ollama-generate": ("/api/generate", {"model": "tiny", "prompt": "a", "format": "json", "stream": False}),
    "ollama-embed": ("/api/embed", {"model": "tiny", "input": "a"}),
    "ollama-show": ("/api/show", {"model": "tiny", "verbose": True}),
    "completion": (
        "/completion",
        {"prompt": ["a", 5], "n_predict": 3, "grammar": 'root ::= "a" | "b"', "samplers": ["top_k"]},
    ),
    "infill": ("/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": 1}),
    "tokenize": ("/tokenize", {"content": "a <|im_end|>", "with_pieces": True}),
    "detokenize": ("/detokenize", {"tokens": [5, 6]}),
    "template": ("/apply-template", {"messages": [USER]}),
    "embedding": ("/embedding", {"content": "a"}),
    "lora": ("/lora-adapters", {"id": 0, "scale": 0.5}),
}
SCHEMAS = {
    "keywords": {
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "^[a-c]{1,3}$", "maxLength": 3},
            "b": {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 9}, "maxItems": 2},
            "c": {"enum": [1, None, "x"]},
        },
        "required": ["a"],
        "additionalProperties": False,
    },
    "references": {
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
        "anyOf": [{"$ref": "#/$defs/node"}, {"const": 5}],
    },
    "together": {"allOf": [{"type": "integer"}, {"minimum": 3}], "anyOf": [{"maximum": 5}, {"minimum": 7}]},
    "formats": {"type": "string", "format": "date-time"},
}
GBNF = {
    "list": 'root ::= item ("," item)*\nitem ::= [a-c]{1,2} | "\\"" [^"\\n]+ "\\""\n',
    "recursive": 'root ::= "(" root? ")" # a comment\n',
    "escapes": 'root ::= "\\x41" [\\u00e9-\\u00ff] . "end"\n',
}
LARK = {
    "rules": 'start: item ("," item)*\nitem: WORD | NUMBER\nWORD: /[a-z]+/\nNUMBER: /[0-9]{1,3}/\n',
    "recursive": 'start: "(" start? ")"\n',
    "schema": 'start: "x" json\njson: %json {"type": "integer"}\n',
}
REGEXES = {"classes": r"[a-c]+\d{2}(x|y)?\.", "flags": r"(?i)hello|\p{L}{1,4}", "bounds": r"^a{2,3}$"}
LOCK = f"""version = 1

[[model]]
name = "hf:a/b:Q4_K_M"
licence = "mit"
template = "{"c" * 64}"

[[model.file]]
path = "huggingface.co/a/b/m-Q4_K_M.gguf"
size = 10
sha256 = "{"0" * 64}"
url = "https://localhost/m.gguf"
"""
CONFIG = """[defaults]
threads = 2
[serve]
port = 8080
[models."chat@1"]
path = "a.gguf"
context = 64
idle = 1.5
preload = true
[models.b]
path = "b.gguf"
override_tensor = ["a=cpu"]
[aliases.chat]
versions = { "chat@1" = 90, b = 10 }
shadow = "b"
shadow_share = 0.5
"""


def made() -> dict[str, Inputs]:
    """By target, the inputs by name."""
    return {
        "requests": {name: body(*rest) for name, rest in BODIES.items()},
        "schema": {name: json.dumps(schema).encode() for name, schema in SCHEMAS.items()},
        "gbnf": encoded(GBNF),
        "lark": encoded(LARK),
        "regex": encoded(REGEXES),
        "registry": registries(),
        "lock": {"one": LOCK.encode()},
        "journal": {"spans": journal()},
        "config": {"all": CONFIG.encode()},
        "wire": messages(),
    }


def encoded(texts: dict[str, str]) -> Inputs:
    return {name: text.encode() for name, text in texts.items()}


def body(path: str, value: dict[str, Any]) -> bytes:
    return bytes([ord("a") + ROUTES.index(path)]) + json.dumps(value).encode()


def answers(name: str, *parts: tuple[str, bytes]) -> bytes:
    """A name, and its registry's responses: status and headers, and the body."""
    return b"\n---\n".join([name.encode(), *(head.encode() + b"\n\n" + rest for head, rest in parts)])


def registries() -> Inputs:
    files = {"m-Q4_K_M.gguf": b"a" * 9, "m-Q8_0.gguf": b"b" * 9, "p-00001-of-00002.gguf": b"c"}
    listed = json.dumps(repository(files)).encode()
    licence = ("application/vnd.ollama.image.license", b"MIT License")
    layers = [layer(("application/vnd.ollama.image.model", b"x" * 9)), layer(licence)]
    manifest = json.dumps({"schemaVersion": 2, "layers": layers}).encode()
    kind = "200\ncontent-type: application/json"
    return {
        "hub": answers("hf:a/b:Q8_0", (kind, listed)),
        "hub-file": answers("hf:a/b/m-Q4_K_M.gguf", (kind, listed)),
        "redirect": answers("hf:a/b", ("302\nlocation: /other", b""), (kind, listed)),
        "ollama": answers("ollama:name:tag", (kind, manifest), ("200\n", licence[1])),
        "address": answers("https://a.example/b/m.gguf"),
    }


def journal() -> bytes:
    told = {"url": "https://a.example/m.gguf", "size": 100, "etag": '"x"', "sha256": "0" * 64}
    return json.dumps(told).encode() + b"\n0 10\n50 60\n10 20\n"


def messages() -> Inputs:
    import numpy as np

    sampling = Sampling(temperature=0.5, seed=3)
    request = GenerateRequest((1, 2, 3), 5, sampling, frozenset({7}), grammar=JsonSchema(ADD))
    arrays = Arrays()
    value = encode([np.arange(6, dtype=np.float32).reshape(2, 3), (1, None)], arrays)
    rest = b"".join(bytes(part) for part in arrays.parts)
    error = encode_error(ValueError("a reason"))
    one = {
        "submit": message_of(json.dumps({"submit": 1, "request": encode(request)}).encode()),
        "open": message_of(json.dumps({"options": encode(Options(context=64))}).encode()),
        "answer": message_of(json.dumps({"answer": 2, "value": value}).encode(), rest),
        "tokens": message_of(json.dumps({"tokens": [[1, [encode(Choice(("a", "b")))]]]}).encode()),
        "failed": message_of(json.dumps({"end": 3, "finish": "error", "error": error}).encode()),
    }
    return {**one, "several": b"".join(one.values())}
