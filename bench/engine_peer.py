"""llama-cpp-python as the peer of bench/engine.py: a process that executes commands from a pipe. Its object
serves one call at a time, so its clients wait for each other, as they must in an application.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from compare_engines import main
from compare_seats import cores
from serving_peer import repacked


class Peer:
    model: Any
    lock: threading.Lock
    kept: list[Any]

    def load(self, path: str) -> str:
        """Opens the file with the settings that bench/compare.py finds fastest: repacked, without the AMX
        buffers, which crash the process for some files.
        """
        from llama_cpp import Llama

        self.kept = repacked(path)
        self.model = Llama(path, n_ctx=2048, n_threads=cores(), n_threads_batch=cores(), verbose=False)
        self.lock = threading.Lock()
        return "ready"

    def clients(self, prompts: list[list[int]], length: int) -> float:
        """Tokens per second of all clients together."""

        def one(ids: list[int]) -> int:
            with self.lock:
                self.model.reset()
                tokens = self.model.generate(ids, temp=0.0)
                return sum(1 for _ in zip(range(length), tokens, strict=False))

        started = time.perf_counter()
        with ThreadPoolExecutor(len(prompts)) as pool:
            made = sum(pool.map(one, prompts))
        return made / (time.perf_counter() - started)


if __name__ == "__main__":
    peer = Peer()
    main(
        {"load": lambda c: peer.load(c["path"]), "clients": lambda c: peer.clients(c["prompts"], c["length"])}
    )
