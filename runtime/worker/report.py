"""What a worker process of a fleet reports besides its answers: its load, and news of its cached blocks."""

from __future__ import annotations

import threading

from satchel.runtime.api.model import Model
from satchel.runtime.engine.engine import Engine
from satchel.runtime.engine.service import Service
from satchel.runtime.kv.digests import SHORT, BlockDigests
from satchel.runtime.kv.news import BlockNews
from satchel.runtime.worker.wire import Message


def load_of(service: Service) -> list[object]:
    """Waiting and running requests, prompt tokens still to compute, context tokens that decoding sequences
    attend to, free tokens of KV cache, most tokens of a step, steps so far, and StepTime's weights. Any
    thread may ask.
    """
    scheduler, engine = service.scheduler, service.engine
    running, waiting = list(scheduler.running), list(scheduler.waiting)
    queued = sum(seq.remaining for seq in (*waiting, *running) if not seq.decoding)
    read = sum(seq.num_computed_tokens for seq in running if seq.decoding)
    free = engine.pages.free_blocks * engine.cache.block
    weights = [float(weight) for weight in scheduler.time.weights]
    steps = scheduler.time.steps
    return [len(waiting), len(running), max(0, queued), read, max(0, free), engine.batch, steps, weights]


class Reports:
    """Makes the reports of a model. key: of the fleet's digests."""

    def __init__(self, model: Model, key: bytes) -> None:
        self._model, self._key, self._lock = model, key, threading.Lock()
        self._engine: Engine | None = None
        self._news = BlockNews(BlockDigests(model.cache.block, key))
        self._load: list[object] = []
        self._service: Service | None = None
        self.attach()

    def attach(self) -> None:
        """Follows the model's engine, which the loss of a device replaces. On the engine's thread, or before
        its first step.
        """
        engine = self._model.engine
        if engine is self._engine:
            return
        service = self._model.service
        self._service = service if isinstance(service, Service) else None
        self._news.clear()  # an engine that was lost had them
        self._engine, engine.pages.tree.news = engine, self._news
        if engine.tier is not None:
            engine.tier.digests, engine.tier.news = self._news.digests, self._news

    def messages(self) -> list[Message]:
        """What is new since the last call."""
        found = list[Message]()
        with self._lock:
            load = load_of(self._service) if self._service else self._load
            if load != self._load:
                found.append({"load": load})
                self._load = load
            while any(told := self._news.take()):
                kept, gone = ([digest[:SHORT].hex() for digest in part] for part in told)
                found.append({"blocks": {"kept": kept, "gone": gone}})
        return found
