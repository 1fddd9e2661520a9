"""Recommends things like those you liked: python examples/recommend.py items.txt "The Old Lighthouse" [more
...] [-m MODEL]

Each line of the file is one thing: its name, a colon, a description. Each description gets an embedding; the
recommended things are those nearest to the mean of the liked ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from satchel import Model


def read(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if ":" in line]
    return {name.strip(): line for line in lines for name in [line.partition(":")[0]]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("items", type=Path)
    parser.add_argument("liked", nargs="+")
    parser.add_argument("-m", "--model", help="file, or name of `satchel list`; default: the bundled one")
    parser.add_argument("-n", type=int, default=3, help="how many to show")
    asked = parser.parse_args()
    items = read(asked.items)
    if missing := [name for name in asked.liked if name not in items]:
        raise SystemExit(f"{asked.items}: has no {missing[0]!r}; it has {', '.join(items)}")
    with Model.load(asked.model, slots=8) as model:
        vectors = model.embed(list(items.values()))
    vectors = vectors - vectors.mean(axis=0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    names = list(items)
    taste = vectors[[names.index(name) for name in asked.liked]].mean(axis=0)
    ranked = sorted(
        (-float(v @ taste), n) for v, n in zip(vectors, names, strict=True) if n not in asked.liked
    )
    for score, name in ranked[: asked.n]:
        print(f"{-score:+.3f}  {items[name]}")


if __name__ == "__main__":
    main()
