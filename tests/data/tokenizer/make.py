"""Makes expected.json: the ids that llama.cpp gives for texts.json, so that tests need no peer.

    python tests/data/tokenizer/make.py SHARED     SHARED holds vocabs/*.gguf and default-model/*.gguf

For each vocabulary and text: "plain" ids (no begin token, control tokens not parsed), "special" (parsed) and
"added" (parsed, with the tokens that the file adds); null where they equal the entry before.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from llama_cpp import Llama

HERE = Path(__file__).parent


def tokenize(path: Path, texts: list[str]) -> dict[str, list[list[int] | None]]:
    llama = Llama(str(path), vocab_only=True, verbose=False)
    found: dict[str, list[list[int] | None]] = {"plain": [], "special": [], "added": []}
    for text in texts:
        raw = text.encode()
        plain = llama.tokenize(raw, add_bos=False, special=False)
        special = llama.tokenize(raw, add_bos=False, special=True)
        added = llama.tokenize(raw, add_bos=True, special=True)
        found["plain"].append(plain)
        found["special"].append(None if special == plain else special)
        found["added"].append(None if added == special else added)
    return found


def main(shared: Path) -> None:
    texts = json.loads((HERE / "texts.json").read_text(encoding="utf-8"))
    files = [*sorted((shared / "vocabs").glob("*.gguf")), *(shared / "default-model").glob("*.gguf")]
    rows = [
        f"{json.dumps(path.stem)}: {json.dumps(tokenize(path, texts), separators=(',', ':'))}"
        for path in files
    ]
    (HERE / "expected.json").write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
