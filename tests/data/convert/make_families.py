"""Writes families.json and families.npz beside this file: names and shapes of the families' tensors, and what
transformers computes with them at two positions. Refuses where what transformers saves converts to anything
else than what was published.

Run from the repository's root with torch and transformers installed, names of cases or none for all:
python tests/data/convert/make_families.py [gemma2 ...]
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "support")]

from families import CASES, DATA, IDS, KEPT, config, tensors, write  # noqa: E402
from toy_checkpoint import write_tokenizer  # noqa: E402

from satchel.runtime.weights.sources import open_checkpoint  # noqa: E402


def filled(case: str) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """The model of a case with its numbers, and the shapes of what it saves."""
    settings = config(case)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**{k: v for k, v in settings.items() if k != "architectures"}),
        dtype=torch.float32,
        # Eager ALiBi counts twice in transformers 5.
        attn_implementation="sdpa" if settings.get("alibi") else "eager",
    ).eval()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        from safetensors import safe_open

        with safe_open(Path(folder) / "model.safetensors", "np") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        made = write(Path(folder) / "made", settings, tensors(case, shapes))
        model, found = AutoModelForCausalLM.from_pretrained(
            made, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    if set(found["missing_keys"]) - tied or found["unexpected_keys"]:
        raise SystemExit(f"{case}: {found}")
    return model.eval(), shapes


def check_saved(case: str, model: Any, shapes: dict[str, tuple[int, ...]]) -> None:
    """What transformers saves must convert to the same model as the configuration that is published."""
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "saved"
        model.save_pretrained(saved)
        write_tokenizer(saved)
        published = write(Path(folder) / "published", config(case), tensors(case, shapes))
        with open_checkpoint(saved) as a, open_checkpoint(published) as b:
            keys = [k for k in {*a.metadata, *b.metadata} if not k.startswith(("general.", "tokenizer."))]
            odd = [k for k in keys if not np.array_equal(a.metadata.get(k), b.metadata.get(k))]
            if odd or set(a.tensors) != set(b.tensors):
                shown = [(k, a.metadata.get(k), b.metadata.get(k)) for k in odd]
                raise SystemExit(f"{case}: saved and published differ in {shown or 'tensors'}")


def main() -> None:
    names = sys.argv[1:] or list(CASES)
    known = json.loads((DATA / "families.json").read_text()) if (DATA / "families.json").is_file() else {}
    logits = dict(np.load(DATA / "families.npz")) if (DATA / "families.npz").is_file() else {}
    for case in names:
        model, shapes = filled(case)
        with torch.no_grad():
            out = model(torch.tensor([IDS])).logits[0].numpy()
        logits[case] = out[list(KEPT)].astype(np.float16)
        known[case] = {name: list(shape) for name, shape in shapes.items()}
        check_saved(case, model, shapes)
        print(case, float(np.abs(out).max()))
    kept = [case for case in CASES if case in known]
    (DATA / "families.json").write_text(json.dumps({case: known[case] for case in kept}, indent=0) + "\n")
    np.savez_compressed(DATA / "families.npz", **{case: logits[case] for case in kept})


if __name__ == "__main__":
    main()
