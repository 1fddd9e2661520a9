"""Converts a checkpoint's tokenizer to GGUF's tokenizer.* keys: vocabulary, special tokens, chat templates.

tokenizer.model (SentencePiece) wins over tokenizer.json, which is derived from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from satchel.errors import ModelError
from satchel.formats.convert.general import chat_templates
from satchel.formats.convert.jsonfile import read_optional
from satchel.formats.convert.sentencepieces import read_sentencepiece
from satchel.formats.convert.token_table import PREFIX, Added, Table, added_entries, put_added
from satchel.formats.convert.tokenizerjson import read_tokenizer_json
from satchel.formats.tokenizer.specials import TEXTS
from satchel.formats.tokenizer.vocab import Kind

# tokenizer_config.json's names, and GGUF's for the id ("seperator" is how GGUF spells it).
SPECIALS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",
    "pad_token": "padding_token_id",
    "mask_token": "mask_token_id",
    "cls_token": "cls_token_id",
}


@dataclass(frozen=True, slots=True)
class ConvertedVocabulary:
    """The converted tokenizer. values: metadata by full key. notes: lines about oddities."""

    values: dict[str, Any]
    notes: tuple[str, ...]


def read_vocabulary(folder: Path, config: Mapping[str, Any], rows: int) -> ConvertedVocabulary:
    """Converts the tokenizer of a checkpoint. rows: of the embedding matrix, one for each token.

    ModelError without a tokenizer, for a kind that GGUF has no name for, or for tokens beyond the rows.
    """
    settings = read_optional(folder / "tokenizer_config.json")
    notes: list[str] = []
    table, values = _read_table(folder, settings, notes)
    _fit(folder, table, rows, notes)
    words = values[f"{PREFIX}model"] == "bert"
    values[f"{PREFIX}tokens"] = [_spelt(table, i) if words else table.texts[i] for i in range(rows)]
    values[f"{PREFIX}token_type"] = np.array([table.kinds[i] for i in range(rows)], np.int32)
    if values[f"{PREFIX}model"] in ("llama", "t5"):
        values[f"{PREFIX}scores"] = np.array([table.scores[i] for i in range(rows)], np.float32)
    values = _special_ids(folder, settings, config, table) | values
    if words and f"{PREFIX}cls_token_id" in values:
        values[f"{PREFIX}bos_token_id"] = values[f"{PREFIX}cls_token_id"]
    for name in ("bos", "eos"):
        stated = settings.get(f"add_{name}_token")
        if isinstance(stated, bool):
            values[f"{PREFIX}add_{name}_token"] = stated
    return ConvertedVocabulary(values | chat_templates(folder, settings), tuple(notes))


def _spelt(table: Table, id: int) -> str:
    """A WordPiece token as GGUF spells it. GGUF marks the start of a word by U+2581; the checkpoint marks a
    continuation by ##.
    """
    text = table.texts[id]
    if table.kinds[id] != Kind.NORMAL or (text.startswith("[") and text.endswith("]")):
        return text
    return text[2:] if text.startswith("##") and len(text) > 2 else f"\u2581{text}"


def _read_table(folder: Path, settings: Mapping[str, Any], notes: list[str]) -> tuple[Table, dict[str, Any]]:
    model, tokens = folder / "tokenizer.model", folder / "tokenizer.json"
    if model.is_file() and (found := read_sentencepiece(model, required=not tokens.is_file())):
        table, values = found
        put_added(table, added_tokens(folder, settings))
        return table, values
    if tokens.is_file():
        return read_tokenizer_json(tokens, notes)
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        raise ModelError(
            f"{folder}: expected tokenizer.json or tokenizer.model, got vocab.json and merges.txt; write the"
            " former with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    raise ModelError(
        f"{folder}: expected tokenizer.json or tokenizer.model, found neither; download them as well"
    )


def added_tokens(folder: Path, settings: Mapping[str, Any]) -> list[Added]:
    """The tokens added to a SentencePiece model: added_tokens.json, then tokenizer.json, then
    added_tokens_decoder of tokenizer_config.json; a later file wins.
    """
    found: dict[int, Added] = {}
    for text, id in read_optional(folder / "added_tokens.json").items():
        if type(id) is int:
            found[id] = Added(id, text, special=False)
    for entry in added_entries(read_optional(folder / "tokenizer.json").get("added_tokens")):
        found[entry.id] = entry
    decoder = settings.get("added_tokens_decoder")
    rows = []
    if isinstance(decoder, dict) and _is_table(decoder):
        rows = [value | {"id": int(id)} for id, value in decoder.items()]
    for entry in added_entries(rows):
        found[entry.id] = entry
    return list(found.values())


def _is_table(value: dict[str, Any]) -> bool:
    return all(isinstance(v, dict) and k.isascii() and k.isdigit() and len(k) < 10 for k, v in value.items())


def _fit(folder: Path, table: Table, rows: int, notes: list[str]) -> None:
    """Fits the table to the embeddings: exactly one token per row. A row without a token gets a spare one
    ([PAD7]). An added token without a row is left out, with a note; ModelError where any other token has no
    row.
    """
    beyond = sorted(i for i in table.texts if not 0 <= i < rows)
    plain = [i for i in beyond if table.kinds[i] not in (Kind.CONTROL, Kind.USER_DEFINED)]
    if plain:
        raise ModelError(
            f"{folder}: tokenizer: expected ids below {rows:,}, the rows of the embeddings, got"
            f" {plain[-1]:,}; the tokenizer belongs to another model"
        )
    for id in beyond:
        notes.append(
            f"{folder}: token {table.texts[id]!a:.60} has id {id:,}, but the embeddings have {rows:,}"
            " rows: it is left out"
        )
        del table.texts[id], table.kinds[id], table.scores[id]
    known = set(table.texts.values())
    for id in range(rows):
        if id not in table.texts:
            text = f"[PAD{id}]"
            table.put(id, f"{text}_" if text in known else text, Kind.UNUSED, -10000.0)


def _special_ids(
    folder: Path, settings: Mapping[str, Any], config: Mapping[str, Any], table: Table
) -> dict[str, Any]:
    """GGUF keys of the special tokens' ids. The tokenizer's files win over config.json and
    generation_config.json. A second end-of-sequence token in generation_config.json becomes eot_token_id.
    """
    index = {text: i for i, text in table.texts.items()}
    other = read_optional(folder / "special_tokens_map.json")
    generation = read_optional(folder / "generation_config.json")
    values: dict[str, Any] = {}
    for name, key in SPECIALS.items():
        text = _token_text(settings.get(name)) or _token_text(other.get(name))
        id = index.get(text) if text is not None else None
        if id is None:
            stated = [config.get(f"{name}_id"), generation.get(f"{name}_id")]
            id = next((i for i in map(_first, stated) if i is not None and i in table.texts), None)
        if id is not None:
            values[PREFIX + key] = id
    ends = generation.get("eos_token_id")
    main = values.get(f"{PREFIX}eos_token_id")
    if isinstance(ends, list) and main is not None:
        known = {index[text] for text in (*TEXTS["eot"], *TEXTS["eom"]) if text in index}
        more = [i for i in ends if type(i) is int and i in table.texts and i != main and i not in known]
        if more:
            values[f"{PREFIX}eot_token_id"] = more[0]
    return values


def _token_text(value: object) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _first(value: object) -> int | None:
    if isinstance(value, list):
        value = value[0] if value else None
    return value if type(value) is int else None
