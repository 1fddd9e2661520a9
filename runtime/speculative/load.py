"""Opens a draft model beside a loaded model: on its device, with its slots and context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from satchel.errors import RequestError
from satchel.formats.gguf import GGUF, open_gguf
from satchel.formats.tokenizer import Tokenizer, build_tokenizer
from satchel.runtime.device.device import Device
from satchel.runtime.device.group import members_of
from satchel.runtime.engine.engine import Engine
from satchel.runtime.layers.arch import Cache, HParams
from satchel.runtime.placement.sizing import size
from satchel.runtime.speculative.draft import DraftModel, check_vocabulary
from satchel.runtime.weights.packing import own_bytes
from satchel.runtime.weights.resident import Resident


def open_draft(
    path: str | Path,
    tokenizer: Tokenizer,
    vocab: int,
    cache: Cache,
    device: Device,
    *,
    repack: bool = True,
) -> tuple[GGUF, DraftModel]:
    """Opens a draft model. tokenizer, vocab, cache: the target model's. The caller closes the file, after the
    device. Raises RequestError if the vocabularies differ.
    """
    device = members_of(device)[0]  # a draft model is small: one member of a group runs it
    gguf = open_gguf(path)
    try:
        check_vocabulary(tokenizer, build_tokenizer(gguf.metadata, source=str(path)), str(path))
        name = gguf.metadata.get_str("general.architecture")
        trained = HParams(gguf.metadata, name).uint("context_length", high=1 << 30)
        wanted = replace(cache, context=min(cache.context, trained))
        free = device.info().memory_free - own_bytes(gguf, device, repack)
        arch, _ = size(gguf, wanted, free)
        if free < 0:
            raise RequestError(f"{path}: the draft model does not fit into memory; leave it out")
        engine = Engine(
            arch.build(),
            arch.cache,
            [device],
            Resident(gguf, repack),
            source=str(path),
        )
        return gguf, DraftModel(engine, vocab, arch.vocab)
    except BaseException:
        gguf.close()
        raise


def buckets(most: int) -> Sequence[int]:
    """Row buckets of the plans for steps with up to `most` draft tokens of one request."""
    return [1 << i for i in range(most.bit_length() + 1)]
