"""Writes logits.npz beside this file: what transformers computes on the toy checkpoints, at two positions.

Run from the repository's root with torch and transformers installed:
python tests/data/convert/make_expected.py
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "support"), str(HERE.parents[1] / "formats" / "convert")]

from test_checkpoint import CASES, IDS, checkpoint  # noqa: E402


def main() -> None:
    expected = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            model = AutoModelForCausalLM.from_pretrained(checkpoint(Path(folder), case), dtype=torch.float32)
            out = model.eval()(torch.tensor([IDS])).logits[0].numpy()
            expected[case.replace(" ", "_")] = out[[5, -1]].astype(np.float16)
    np.savez_compressed(HERE / "logits.npz", **expected)


if __name__ == "__main__":
    main()
