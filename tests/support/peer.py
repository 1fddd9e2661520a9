"""llama.cpp's logits and hidden states of a file, where llama-cpp-python is installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest


def peer_rows(path: Path, ids: list[int]) -> npt.NDArray[np.float32]:
    """An encoder's hidden states of each token (n, D)."""
    return peer_logits(path, ids, encoder=True)


def peer_logits(path: Path, ids: list[int], encoder: bool = False) -> npt.NDArray[np.float32]:
    """Logits after each token (n, V), with a float32 cache; for an encoder the hidden states (n, D)."""
    peer = pytest.importorskip(
        "llama_cpp", reason="llama-cpp-python, which this compares with, is not installed"
    )
    # Plain kernels: results of repacked weights differ between machines.
    params = peer.llama_model_default_params()
    params.use_extra_bufts, params.n_gpu_layers = False, 0
    peer.llama_log_set(QUIET := peer.llama_log_callback(lambda *_: None), None)
    assert QUIET
    model = peer.llama_model_load_from_file(str(path).encode(), params)
    assert model, "llama.cpp refuses the file"
    options = peer.llama_context_default_params()
    options.n_ctx = options.n_batch = options.n_ubatch = 256
    options.type_k = options.type_v = 0
    options.flash_attn_type = 0  # flash attention rounds queries and keys
    if encoder:
        options.embeddings, options.pooling_type = True, 0
    context = peer.llama_init_from_model(model, options)
    batch = peer.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
        batch.seq_id[i][0] = 0
    assert (peer.llama_encode if encoder else peer.llama_decode)(context, batch) == 0
    size = peer.llama_vocab_n_tokens(peer.llama_model_get_vocab(model))
    read = peer.llama_get_logits_ith
    if encoder:
        size, read = peer.llama_model_n_embd(model), peer.llama_get_embeddings_ith
    out = np.stack([np.ctypeslib.as_array(read(context, i), (size,)).copy() for i in range(len(ids))])
    peer.llama_batch_free(batch)
    peer.llama_free(context)
    peer.llama_model_free(model)
    return out
