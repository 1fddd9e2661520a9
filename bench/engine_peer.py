"""llama-cpp-python as the peer of bench/engine.py: a process that executes commands from a pipe. Its object
serves one call at a time, so its clients wait for each other, as they must in an application.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from compare_engines import main, matrices, overrides
from compare_seats import cores


def repacked(path: str) -> list[Any]:
    """Makes the library repack without AMX buffers, which crash the process for some files. The returned
    objects must be kept alive.
    """
    from llama_cpp import llama_cpp

    defaults, (table, *kept) = llama_cpp.llama_model_default_params, overrides(matrices(path))

    def parameters() -> Any:
        options = defaults()
        options.use_extra_bufts, options.tensor_buft_overrides = False, table
        return options

    llama_cpp.llama_model_default_params = parameters
    return [table, *kept]


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
