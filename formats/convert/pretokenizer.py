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

from satchel.errors import ModelError
from satchel.formats.tokenizer import library
from satchel.formats.tokenizer.bpe import ALPHABET as BYTES
from satchel.formats.tokenizer.pretokenizers import PRETOKENIZERS, PreTokenizer
from satchel.formats.tokenizer.vocab import Meta

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
# A vocabulary whose ids tell where words begin and what they hold: a byte that begins a word is its own
# number, another one 256 more. Characters outside of the byte alphabet have no token, so words that are not
# made of bytes differ. No such word holds a line feed.
NEXT = "\n"
MARKS = library.bpe(
    {char: byte for byte, char in BYTES.items()} | {NEXT + char: 256 + byte for byte, char in BYTES.items()},
    (),
    continuing_subword_prefix=NEXT,
)


@cache
def probes() -> tuple[str, ...]:
    """The probe texts: sentences, single characters of each script, and random mixtures with a fixed seed."""
    rng = random.Random(20240229)
    mixed = ("".join(rng.choices(ALPHABET, k=rng.randint(1, 14))) for _ in range(RANDOM))
    return (*SENTENCES, *ALPHABET, *mixed)


def find_pretokenizer(path: Path, own: object, ignore_merges: bool) -> str:
    """GGUF's name of the pre-tokenizer `own` of tokenizer.json. ModelError shows it where no row of the table
    splits equally.
    """
    cut = _cutter(path, own) if isinstance(own, dict) else None
    if cut is not None:
        wanted = [cut(text) for text in probes()]
        for name, row in candidates(ignore_merges):
            known = library.load(Meta({}), MARKS, described(row))
            if all(known(text) == words for text, words in zip(probes(), wanted, strict=True)):
                return name
    shown = json.dumps(own)[:1500]
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


def described(row: PreTokenizer) -> library.Step:
    """The pre-tokenizer of a row of the table, as tokenizer.json has it."""
    return library.split(row.patterns, library.BYTE_LEVEL)


def _cutter(path: Path, own: library.Step) -> library.Encode:
    """The function that gives the words of a text as MARKS says. ModelError for a part that the library
    refuses.
    """
    try:
        return library.load(Meta({}), MARKS, own)
    except BaseException as error:
        # The library panics on some malformed files; a panic is a BaseException, not an Exception.
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise ModelError(
            f"{path}: pre_tokenizer: the tokenizers library refuses it: {str(error)[:200]!a};"
            " the file is damaged: download it again"
        ) from None
