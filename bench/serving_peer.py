"""llama-cpp-python's server as the peer of bench/serving.py.

python bench/serving_peer.py FILE PORT

It loads the model as bench/engine_peer.py does, and no request interrupts another.
"""

from __future__ import annotations

import sys
from typing import Any

from compare_engines import matrices, overrides
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


def serve(path: str, port: int) -> None:
    import uvicorn
    from llama_cpp.server.app import create_app
    from llama_cpp.server.settings import ModelSettings, ServerSettings

    kept = repacked(path)
    model = ModelSettings(
        model=path, model_alias="m", n_ctx=2048, n_threads=cores(), n_threads_batch=cores(), verbose=False
    )
    app = create_app(
        server_settings=ServerSettings(host="127.0.0.1", port=port, interrupt_requests=False),
        model_settings=[model],
    )
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
    del kept


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
