"""Semantic search over notes: python examples/notes_search.py FOLDER "what was that about boats?" [-m
MODEL]

Each paragraph of the folder's .txt and .md files gets an embedding, which is cached beside the notes and
computed again only for changed files. The results are the paragraphs nearest to the question's embedding. An
embedding model (BERT and relatives) finds better matches than the bundled chat model.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import numpy as np

from satchel import Model

CACHE = ".satchel-notes.npz"


def paragraphs(path: Path) -> list[str]:
    return [p.strip() for p in path.read_text(encoding="utf-8").split("\n\n") if p.strip()]


def index(model: Model, folder: Path) -> tuple[list[tuple[str, str]], np.ndarray]:
    """(file, paragraph) and an embedding of length 1 for each."""
    kept = dict(np.load(folder / CACHE)) if (folder / CACHE).exists() else {}
    found: list[tuple[str, str]] = []
    vectors: dict[str, np.ndarray] = {}
    for path in sorted((*folder.glob("*.txt"), *folder.glob("*.md"))):
        texts = paragraphs(path)
        found += [(path.name, text) for text in texts]
        key = hashlib.sha256("\n\n".join([model.path.name, *texts]).encode()).hexdigest()
        if texts:
            vectors[key] = kept[key] if key in kept else model.embed(texts)
    np.savez(folder / CACHE, **vectors)
    if not found:
        raise SystemExit(f"{folder}: no .txt or .md file with text")
    return found, np.concatenate(list(vectors.values()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("question")
    parser.add_argument("-m", "--model", help="file, or name of `satchel list`; default: the bundled one")
    parser.add_argument("-n", type=int, default=3, help="how many to show")
    asked = parser.parse_args()
    with Model.load(asked.model, slots=8) as model:
        notes, vectors = index(model, asked.folder)
        # A chat model's embeddings lie close together, so subtract their mean.
        middle = vectors.mean(axis=0)
        near = (vectors - middle) @ (model.embed(asked.question)[0] - middle)
        for i in np.argsort(-near)[: asked.n]:
            file, text = notes[i]
            print(f"{near[i]:+.3f}  {file}: {' '.join(text.split())[:100]}")


if __name__ == "__main__":
    main()
