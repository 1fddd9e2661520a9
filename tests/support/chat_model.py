"""A tiny model with a thinking template and marker tokens, and a fake model whose tokens are given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import toy_vocab
from tiny_file import write_model

from satchel.formats.tokenizer import Tokenizer, build_tokenizer
from satchel.runtime.api.options import Options
from satchel.runtime.engine.stats import Usage

TEMPLATE = (
    "{{ tools | tojson if tools }}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% elif opened %}<think>\n{% endif %}{% endif %}"
)
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")


def vocabulary(kind: int = toy_vocab.USER_DEFINED) -> dict[str, Any]:
    """Bytes, a few words and the markers as tokens of a kind."""
    built = toy_vocab.byte_level()
    tokens, kinds = [*built["tokenizer.ggml.tokens"], *MARKERS], list(built["tokenizer.ggml.token_type"])
    return {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [*map(int, kinds), *[kind] * len(MARKERS)],
    }


def tokenizer(kind: int = toy_vocab.USER_DEFINED) -> Tokenizer:
    return build_tokenizer(toy_vocab.byte_level() | vocabulary(kind))


def write_chat_model(path: Path) -> Path:
    """Writes the tiny model. Its markers replace padding tokens."""
    return write_model(path, tokenizer__chat_template=TEMPLATE, markers=MARKERS, qwen3__context_length=1024)


class RequestHandle:
    """Yields the given tokens one by one, then None; None at once where the request was cancelled."""

    def __init__(self, tokens: Sequence[int], request: Any) -> None:
        self.seq = SimpleNamespace(
            request=request,
            ids=list(request.ids),
            num_computed_tokens=0,
            cached=0,
            started=0.0,
            finish="stop",
            used=Usage(),
        )
        self.finish, self._tokens, self.cancelled = "stop", iter(tokens), False

    def get(self, timeout: float | None = None) -> int | None:
        return None if self.cancelled else next(self._tokens, None)

    def cancel(self) -> None:
        self.cancelled = True


class Scripted:
    """A fake model that answers requests from scripts, in order; `requests` records the requests."""

    def __init__(self, tokenizer: Tokenizer, *scripts: Sequence[int], context: int = 512) -> None:
        self.tokenizer, self.context, self.measured_bandwidth = tokenizer, context, None
        self.options = Options()
        self._scripts, self.requests, self.service = iter(scripts), list[Any](), self

    def adapter_scales(self, adapters: object, control_vectors: object) -> tuple[()]:
        return ()

    def submit(self, request: Any) -> RequestHandle:
        self.requests.append(request)
        return RequestHandle(next(self._scripts), request)
