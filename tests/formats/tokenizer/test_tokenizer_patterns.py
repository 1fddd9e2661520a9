"""Rows of the pre-tokenizer table against the published pre-tokenizers of the models.

PUBLISHED has them as in tokenizer.json; the `tokenizers` library runs both on texts of every kind.
"""

from __future__ import annotations

import random
import string
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from satchel.formats.convert.pretokenizer import probes
from satchel.formats.tokenizer.pretokenizers import PRETOKENIZERS, PreTokenizer

Step = tuple[str, Any]


def split(*patterns: str) -> tuple[Step, ...]:
    return tuple(("split", pattern) for pattern in patterns)


ENGLISH = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CAMEL = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
    r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = CAMEL % (f"{ENGLISH}?", f"{ENGLISH}?", "{1,3}")
CL100K = rf"{ENGLISH}|{WORD}|\p{{N}}{{1,3}}|{REST}"
QWEN2 = rf"{ENGLISH}|{WORD}|\p{{N}}|{REST}"
HAN = r"&&[^\p{Han}]"
KIMI = "|".join((
    r"[\p{Han}]+",
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{HAN}]*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{HAN}]+{ENGLISH}?",
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{HAN}]+[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{HAN}]*{ENGLISH}?",
    rf"\p{{N}}{{1,3}}|{REST}",
))  # fmt: skip
MARKS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
)
BYTES = (("bytes", True),)

# (family, row, pre-tokenizer of its tokenizer.json)
PUBLISHED: list[tuple[str, str, tuple[Step, ...]]] = [
    ("Llama 3", "llama-bpe", split(CL100K)),
    ("Falcon 3, Falcon H1", "falcon3", split(CL100K)),
    ("Phi 4, OLMo 2 and 3", "dbrx", split(CL100K)),
    ("GLM 4", "glm4", split(CL100K)),
    ("Qwen 1.5, 2, 2.5, 3 and R1 distills", "qwen2", split(QWEN2)),
    ("StableLM 2", "stablelm2", split(QWEN2)),
    (
        "Qwen 3.5",
        "qwen35",
        split(
            rf"{ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
    ),
    ("gpt-oss, Phi 4 mini", "gpt-4o", split(O200K)),
    ("Llama 4", "llama4", split(O200K)),
    ("MiniMax M2", "minimax-m2", split(O200K)),
    ("Mistral Nemo and later, Ministral", "tekken", split(CAMEL % ("", "", ""))),
    ("Kimi K2", "kimi-k2", split(KIMI)),
    (
        "DeepSeek V3, V3.1, V3.2, R1",
        "deepseek-v3",
        split(
            r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", MARKS + r"|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
    ),
    ("GPT-2, Phi 2, MPT, OLMo 1", "gpt-2", BYTES),
    ("StarCoder 2, SmolLM, Command R, Granite 3", "starcoder", (("digits", True), *BYTES)),
    (
        "Falcon",
        "falcon",
        (("punctuation", "contiguous"), *BYTES, ("digits", False), *split("[0-9][0-9][0-9]")),
    ),
    ("BLOOM", "bloom", split(r" ?[^(\s|[.,!?…。，、।۔،])]+")),
    ("Seed Coder", "seed-coder", split(
        rf"{ENGLISH}|{WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+")),
    ("Ling", "bailingmoe", split(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+")),
    ("MiniCPM 5", "minicpm5", split(r"\p{N}{1,3}", rf"{ENGLISH}|{WORD}|\p{{N}}+|{REST}")),
    ("Cohere Aya", "tiny_aya", split(r"\d{1,3}(?=(?:\d{3})*\b)", O200K)),
    ("EXAONE MoE", "exaone-moe", split(
        rf"{ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+")),
]  # fmt: skip
# Rows that were written anew to take linear time: the number of the pattern, and what it was. (superbpe cuts
# "1½" in two, where the original doesn't.)
REWRITTEN = [
    ("deepseek-llm", 3, r"\s+$"),
    ("superbpe", 1, r"(?=(\d{3})+(?!\d))"),
    ("tiny_aya", 0, r"\d{1,3}(?=(?:\d{3})*\b)"),
    ("afmoe", 0, r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"),
]


def cutter(steps: tuple[Step, ...]) -> Any:
    made: list[Any] = []
    for kind, value in steps:
        match kind:
            case "split":
                made.append(pre_tokenizers.Split(Regex(value), "isolated"))
            case "digits":
                made.append(pre_tokenizers.Digits(individual_digits=value))
            case "punctuation":
                made.append(pre_tokenizers.Punctuation(behavior=value))
            case _:
                made.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=value))
    if ("bytes", True) not in steps:
        made.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(made)


def build(row: PreTokenizer) -> Any:
    """The library's pre-tokenizer for a row of the table."""
    return pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in row.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


@cache
def texts(seed: str) -> tuple[str, ...]:
    """The probes, and random mixtures of Unicode characters, the important ones more often."""
    draw = random.Random(seed)
    common = [
        *string.printable,
        *"éÉßſKΩжЖあ漢한ก्́½²٣৩… 　\u2028\u200d🙂",
        "'s",
        "'LL",
        "'ſ",
        "   ",
        "\r\n",
        "123",
    ]
    return (*probes(), *("".join(mixed(draw, common)) for _ in range(400)))


def mixed(draw: random.Random, common: list[str]) -> Iterator[str]:
    for _ in range(draw.randint(1, 30)):
        code = draw.randrange(0x20000)
        rare = draw.random() < 0.3 and not 0xD800 <= code < 0xE000
        yield chr(code) if rare else draw.choice(common)


def comparable(name: str, text: str) -> bool:
    """Falcon searches for digits among the characters that stand for bytes, six of which are ², ³, ¹, ¼, ½
    and ¾. No merge of its vocabulary holds one of these bytes, so the ids are the same.
    """
    if name == "falcon":
        return text.isascii()
    # The libraries know different versions of Unicode: a newer character has no category in one of them.
    return all(unicodedata.category(char) != "Cn" for char in text)


@pytest.mark.parametrize(("family", "name", "steps"), PUBLISHED, ids=[name for _, name, _ in PUBLISHED])
def test_a_row_cuts_as_the_published_tokenizer(family: str, name: str, steps: tuple[Step, ...]) -> None:
    published, ours, compared = cutter(steps), build(PRETOKENIZERS[name]), 0
    for text in texts(name):
        if comparable(name, text):
            assert ours.pre_tokenize_str(text) == published.pre_tokenize_str(text), (family, text)
            compared += 1
    assert compared > 200


@pytest.mark.parametrize(("name", "number", "original"), REWRITTEN, ids=[name for name, _, _ in REWRITTEN])
@given(st.text("0123456789123456789٣  \n\t\r.,'-aZé日", max_size=40))
@settings(max_examples=150, deadline=None)
def test_patterns_for_long_runs_cut_as_the_originals(
    name: str, number: int, original: str, text: str
) -> None:
    row = PRETOKENIZERS[name]
    patterns = list(row.patterns)
    patterns[number] = original
    assert build(row).pre_tokenize_str(text) == cutter(split(*patterns)).pre_tokenize_str(text)
