"""Prefill progress as events of the stream (llama-server's return_progress)."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from satchel.server.generation import GenerationRequest
from satchel.server.openai.shapes import new_id
from satchel.server.stream import event


def reporting(wanted: GenerationRequest, kind: str) -> tuple[GenerationRequest, asyncio.Queue[bytes]]:
    """The request with a progress callback, and the queue of its events. kind: their `object` field."""
    coming: asyncio.Queue[bytes] = asyncio.Queue()
    began, number = time.perf_counter(), new_id("chatcmpl")

    def tell(done: int, total: int) -> None:
        said = {
            "id": number,
            "object": kind,
            "created": int(time.time()),
            "model": wanted.model,
            "choices": [],
            "prompt_progress": {
                "total": total,
                "cache": 0,
                "processed": done,
                "time_ms": round((time.perf_counter() - began) * 1e3),
            },
        }
        coming.put_nowait(event(said))

    return replace(wanted, kwargs={**wanted.kwargs, "progress": tell}), coming
