"""Identifies the pre-tokenizer of a BPE vocabulary: the known one that splits every probe text as the
checkpoint's own does.

Different regular expressions can split equally, so they are compared by their results. The probes contain
every class of characters that a known pre-tokenizer distinguishes, alone and mixed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from satchel.errors import ModelError
from satchel.formats.tokenizer.pretokenizers import PRETOKENIZERS, PreTokenizer

# Of names that mean the same row, the one that most runtimes know; others follow in the table's order.
PREFERRED = ("llama-bpe", "qwen2", "gpt-2", "smollm", "starcoder", "deepseek-llm", "deepseek-v3", "tekken")
SENTENCES = (
    "Hello world, it's 12345 o'clock; I'LL say: \"don't\"!  \n\n  def f(x):\n\treturn x**2  # ok\r\n\r\n",
    "DON'T you'RE we'Ve i'M 'sTOP x'd  y' z 3.14159 1234567890 0xFF 1st ABCdef abcDEF aBc ÉCOLE Straße",
    "你好，世界。これはテストです。한국어 시험 ภาษาไทย สวัสดี مرحبا بالعالم नमस्ते दुनिया",
    "e\u0301 a\u0308\u0304 \u0915\u094d\u0937 ½ ² Ⅷ ٣٤٥ ১২৩ 一二三 ǅ ʰ ª",
    "🙂👍🏽👨‍👩‍👧 ©™ ≠≤ → § ¶ «quoted» …!? ((())) [[x]] {y} <|z|> a/b//c \\n /* */ --> ~~ `code`",
    "   leading  and   trailing    \n \n\t\t x\u00a0y\u3000z\u2028w\u200b \v\f",
    "\n\n\n\n a\n\n b \r\n \r c\n",
    "          deep\n                indentation" + " " * 130 + "x" + " " * 600 + "\n",
    "<sentinel:12> IMGIMGABZ <0x41> [PAD1] ＜全角！＞ ：；，、。",
)
ALPHABET = (
    *"aZsdTé一あアก한ا",
    *"ǅʰªА",
    *"019²Ⅷ½٣",
    *" \t\n\r\u00a0\u3000",
    *"'.,!?-_/\\()[]{}<>|#$^~`+=\"@&*%:;",
    *"…。，、！「€©™→🙂\u0301\u094d\u200d",
    "  ", "\n\n", "'s", "'LL", "123", "   ",
)  # fmt: skip
RANDOM = 1500  # probes


@cache
def probes() -> tuple[str, ...]:
    """The probe texts: sentences, single characters of each script, and random mixtures with a fixed seed."""
    rng = random.Random(20240229)
    mixed = ("".join(rng.choices(ALPHABET, k=rng.randint(1, 14))) for _ in range(RANDOM))
    return (*SENTENCES, *ALPHABET, *mixed)


def find_pretokenizer(path: Path, tokenizer: Any, data: Any, ignore_merges: bool) -> str:
    """GGUF's name of the library tokenizer's pre-tokenizer. ModelError shows its patterns where no row of the
    table splits equally.
    """
    own = tokenizer.pre_tokenizer
    if own is not None:
        wanted = [_cuts(own, text) for text in probes()]
        for name, row in candidates(ignore_merges):
            cutter = build(row)
            if all(_cuts(cutter, text) == cut for text, cut in zip(probes(), wanted, strict=True)):
                return name
    shown = json.dumps(data.get("pre_tokenizer"))[:1500]
    merges = "with" if ignore_merges else "without"
    raise ModelError(
        f"{path}: pre_tokenizer: expected one that cuts words as a known one does ({merges} ignore_merges),"
        f" got {shown}; a row for it in formats/tokenizer/pretokenizers.py makes it known"
    )


def candidates(ignore_merges: bool) -> Iterator[tuple[str, PreTokenizer]]:
    """The distinct rows of the table, each under its preferred name. add_bos is ignored: the file has a key
    for it.
    """
    names: dict[tuple[str, ...], str] = {}
    for name in (*PREFERRED, *PRETOKENIZERS):
        row = PRETOKENIZERS[name]
        if not row.raw and row.ignore_merges == ignore_merges:
            names.setdefault(row.patterns, name)
    return iter([(name, PRETOKENIZERS[name]) for name in names.values()])


def build(row: PreTokenizer) -> Any:
    """The library's pre-tokenizer for a row of the table."""
    from tokenizers import Regex, pre_tokenizers

    steps: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in row.patterns]
    return pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def _cuts(cutter: Any, text: str) -> list[tuple[str, tuple[int, int]]]:
    """The words with their offsets. The words count too: a pre-tokenizer that changes them is another one."""
    found: list[tuple[str, tuple[int, int]]] = cutter.pre_tokenize_str(text)
    return found
