"""Writes mixed.json and mixed.npz beside this file, as make_families.py does for other families: names and
shapes of tensors, and what transformers computes with them.

Run from the repository's root with torch and transformers installed, names of cases or none for all:
python tests/data/convert/make_mixed.py [deepseek_v3 ...]
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "support")]

import jina_bert  # noqa: E402
import mixed_families as mixed  # noqa: E402
import toy_sentences  # noqa: E402
from families import IDS, KEPT, values_of, write  # noqa: E402

OWN = {"jina_bert_v2": jina_bert}  # families that transformers has no class of


def shapes_of(case: str) -> dict[str, list[int]]:
    """What transformers saves of a model of this configuration."""
    settings = {k: v for k, v in mixed.config(case).items() if k != "architectures"}
    if case in OWN:
        return OWN[case].shapes(settings)
    kind = getattr(transformers, mixed.config(case)["architectures"][0])
    model = kind(transformers.AutoConfig.for_model(**settings))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        from safetensors import safe_open

        with safe_open(Path(folder) / "model.safetensors", "np") as file:
            return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def expected(case: str, shapes: dict[str, list[int]]) -> Any:
    """The logits at the kept positions, or for a model without a head its last hidden states."""
    if case in OWN:
        return OWN[case].rows(mixed.config(case), values_of(shapes), IDS)[list(KEPT)]
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        source = write(Path(folder) / "m", mixed.config(case), values_of(shapes))
        kind = getattr(transformers, mixed.config(case)["architectures"][0])
        model, info = kind.from_pretrained(
            source, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        if info["missing_keys"] or info["unexpected_keys"]:
            raise SystemExit(f"{case}: {info}")
        if case in mixed.RERANKERS:
            return scores(mixed.with_tokenizer(source, case), model.eval())
        out = model.eval()(torch.tensor([IDS]))
        rows = out.logits if hasattr(out, "logits") else out.last_hidden_state
        return rows[0].numpy()[list(KEPT)]


def scores(folder: Path, model: Any) -> Any:
    """The logit of each document, one at a time, by the tokenizer's own way to write pairs."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    found = []
    for document in toy_sentences.DOCUMENTS:
        pair = tokenizer.encode(toy_sentences.QUERY, document)
        types = {} if model.config.model_type == "modernbert" else {"token_type_ids": [pair.type_ids]}
        if model.config.model_type == "xlm-roberta":
            types["token_type_ids"] = [[0] * len(pair.ids)]
        asked = {"input_ids": [pair.ids], **types}
        found.append(model(**{k: torch.tensor(v) for k, v in asked.items()}).logits[0, 0].item())
    return np.array(found)


def main() -> None:
    files = mixed.STEM.with_suffix(".json"), mixed.STEM.with_suffix(".npz")
    known = json.loads(files[0].read_text()) if files[0].is_file() else {}
    logits = dict(np.load(files[1])) if files[1].is_file() else {}
    for case in sys.argv[1:] or [*mixed.CASES, *mixed.ENCODERS, *mixed.RERANKERS]:
        known[case] = shapes_of(case)
        out = expected(case, known[case])
        logits[case] = out.astype(np.float32)
        print(case, float(np.abs(out).max()))
    kept = [case for case in (*mixed.CASES, *mixed.ENCODERS, *mixed.RERANKERS) if case in known]
    files[0].write_text(json.dumps({case: known[case] for case in kept}, indent=0) + "\n")
    np.savez_compressed(files[1], **{case: logits[case] for case in kept})


if __name__ == "__main__":
    main()
