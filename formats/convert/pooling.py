"""Reads the pooling of a sentence-transformers folder from modules.json. A module that changes embeddings and
has no GGUF key is refused by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from satchel.errors import ModelError
from satchel.formats.convert.jsonfile import read_json, read_list, read_optional

MODES = {"mean": 1, "cls": 2, "lasttoken": 3}  # GGUF's pooling_type
RANKS = 4  # pooling_type of a reranker
# Older settings have a flag per mode.
FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
HARMLESS = ("Transformer", "Normalize", "Dropout")  # a request says whether embeddings are normalized


def read_pooling(folder: Path) -> int | None:
    """GGUF's pooling_type; None without modules.json. ModelError for an unsupported module or mode."""
    path, found = folder / "modules.json", None
    if not path.is_file():
        return None
    for module in read_list(path):
        kind = module.get("type") if isinstance(module, dict) else None
        name = kind.rpartition(".")[2] if isinstance(kind, str) else ""
        if name == "Pooling" and isinstance(module.get("path"), str) and found is None:
            found = _mode(folder, module["path"])
        elif name not in HARMLESS:
            known = ", ".join((*HARMLESS, "Pooling"))
            raise ModelError(
                f"{path}: expected modules of {known}, got {str(kind)[:80]!a}; what it makes of vectors is"
                " not supported"
            )
    settings = read_optional(folder / "sentence_bert_config.json")
    lower = read_optional(folder / "tokenizer_config.json").get("do_lower_case")
    if settings.get("do_lower_case") and not lower:
        raise ModelError(
            f"{folder / 'sentence_bert_config.json'}: do_lower_case: expected what the tokenizer does too,"
            " got true for it alone; this is not supported"
        )
    return found


def _mode(folder: Path, part: str) -> int:
    path = folder / part / "config.json"
    if Path(part).name != part or part in ("", ".", ".."):
        raise ModelError(f"{folder / 'modules.json'}: path: expected a folder's name, got {part[:80]!a}")
    settings = read_json(path)
    stated = settings.get("pooling_mode")
    modes = [stated] if isinstance(stated, str) else [n for key, n in FLAGS.items() if settings.get(key)]
    if len(modes) != 1 or modes[0] not in MODES or settings.get("include_prompt", True) is not True:
        got = _shown(settings, modes)
        raise ModelError(
            f"{path}: expected one pooling mode of {', '.join(MODES)}, over the whole text, got {got}; others"
            " are not supported"
        )
    return MODES[modes[0]]


def _shown(settings: dict[str, Any], modes: list[str]) -> str:
    if settings.get("include_prompt", True) is not True:
        return "include_prompt false"
    return ascii(", ".join(map(str, modes)) or "none")[:80]
