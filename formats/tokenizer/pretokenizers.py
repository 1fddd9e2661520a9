"""Pre-tokenizers of byte-level BPE vocabularies: a table from `tokenizer.ggml.pre` to splitting patterns.

The patterns of a row are applied in turn, each to the pieces of the one before; every match, and the text
between two matches, is a piece. They are the models' own patterns (Oniguruma syntax); those that take
quadratic time on long runs are rewritten to linear time. Names and flags are those of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PreTokenizer:
    """A row of the table."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a token is encoded as it, without merging
    add_bos: bool = False  # the default where the file has no add_bos_token
    # The vocabulary is UTF-8 with U+2581 for spaces and <0xNN> for bytes, not GPT-2's byte alphabet.
    raw: bool = False
    # A word ends before a space between two letters (limit.BORDER), so a long text may be cut there.
    ends_words: bool = True


def _char_class(ranges: str) -> str:
    """A pattern's character class from hexadecimal code points: "41-5A 61-7A" gives [A-Za-z]."""
    return (
        "[" + "".join("-".join(f"\\x{{{end}}}" for end in part.split("-")) for part in ranges.split()) + "]"
    )


CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
TRIPLES = r"\p{N}{1,3}"
GPT2 = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _any(*patterns: str) -> str:
    return "|".join(patterns)


def _camel(
    digits: str, suffix: str = "", besides: str = "", symbols: str = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
) -> str:
    """A pattern that splits words at a capital after small letters. besides: excluded from both letter
    classes.
    """
    upper = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{besides}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{besides}]"
    lead = r"[^\r\n\p{L}\p{N}]?"
    return _any(f"{lead}{upper}*{lower}+{suffix}", f"{lead}{upper}+{lower}*{suffix}", digits, symbols, BLANKS)


def _grouped(digit: str, end: str) -> str:
    """A pattern for digits in groups of three, counted from the end of the run, in linear time."""
    return rf"(?<!{digit}){digit}{{1,3}}(?=(?:{digit}{{3}})*{end})|\G(?<={digit}){digit}{{3}}"


CASED = _char_class(
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A "
    "38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF "
    "1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D "
    "1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 "
    "1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F "
    "2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F "
    "A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 "
    "104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
CJK_OLD = _char_class("4E00-9FA5 800-4E00 AC00-D7FF")
CJK_KANA = _char_class("4E00-9FA5 3040-309F 30A0-30FF")
CJK_WIDE = _char_class(
    "4E00-9FFF 3400-4DBF F900-FAFF 3040-309F 30A0-30FF FF65-FF9F 2F00-2FDF E00-E7F E80-EFF 1780-17FF "
    "1000-109F AA60-AA7F A9E0-A9FF AC00-D7AF 1100-11FF"
)
WIDE_MARKS = _char_class("21-2F 3A-7E FF01-FF0F FF1A-FF5E 2018-201F 3000-3002")
YOUTU_SCRIPTS = _any(
    _char_class("AC00-D7A3 3131-318E") + "+",
    _char_class("FF01 2026 201C 201D 2018 2019 2014 FF1A FF1B FF0C 3001-303F FE30-FE4F") + "+",
    _char_class("3105-312F") + "+",
    CJK_KANA + "+",
)
ASCII_MARK = _char_class("21-2F 3A-40 5B-60 7B-7E")


def _marked(symbols: str, blanks: str) -> str:
    """DeepSeek V3's words: a punctuation mark may begin an ASCII word; letters keep combining marks."""
    return _any(ASCII_MARK + "[A-Za-z]+", r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+", symbols, blanks)


DEEPSEEK3 = _marked(r" ?[\p{P}\p{S}]+[\r\n]*", BLANKS)
QWEN = _any(CONTRACTION, LETTERS, r"\p{N}", SYMBOLS, BLANKS)
LLAMA3 = _any(CONTRACTION, LETTERS, TRIPLES, SYMBOLS, BLANKS)
GPT4O = _camel(TRIPLES, f"(?:{CONTRACTION})?")
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
LINES = r"[^\n]+|\n+"
HALVES = "|".join(rf"\s{{{1 << n}}}(?!\S)" for n in range(9, 1, -1)) + r"|\s{1,2}(?!\S)|\s"

DEFAULT = PreTokenizer((r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))

_ROWS: tuple[tuple[str, PreTokenizer], ...] = (
    ("default", DEFAULT),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 midm lfm2 jina-v5-nano",
        PreTokenizer((LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    ("dbrx smaug-bpe chatglm-bpe", PreTokenizer((LLAMA3,))),
    ("glm4 glm5", PreTokenizer((LLAMA3,), ignore_merges=True)),
    ("jais-2", PreTokenizer((_any(CONTRACTION, LETTERS, TRIPLES, SYMBOLS, r"\s*[\r\n]+", HALVES),))),
    (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
        PreTokenizer((QWEN,)),
    ),
    (
        "qwen35",
        PreTokenizer(
            (
                _any(
                    CONTRACTION,
                    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
                    r"\p{N}",
                    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
                    BLANKS,
                ),
            )
        ),
    ),
    ("ufakzeka", PreTokenizer((_any(LETTERS, r"\p{N}", SYMBOLS, BLANKS),))),
    ("laguna", PreTokenizer((LINES, QWEN))),
    (
        "minicpm5",
        PreTokenizer((TRIPLES, _any(CONTRACTION, LETTERS, r"\p{N}+", SYMBOLS, BLANKS)), ignore_merges=True),
    ),
    (
        "seed-coder",
        PreTokenizer((_any(CONTRACTION, LETTERS, r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+", BLANKS),)),
    ),
    (
        "bailingmoe bailingmoe2 llada-moe",
        PreTokenizer((_any(CONTRACTION, LETTERS, r"\p{N}", SYMBOLS, r"\s*[\r\n]|\s+(?!\S)|\s+"),)),
    ),
    (
        "exaone-moe",
        PreTokenizer(
            (
                _any(
                    CONTRACTION,
                    r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
                    r"\p{N}",
                    r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
                    r"\s*[\r\n]|\s+(?!\S)|\s+",
                ),
            ),
            ends_words=False,  # words of letters go on across spaces
        ),
    ),
    (
        "deepseek-llm",
        PreTokenizer(
            # \s+$ alone tries every start in a run of spaces; the lookbehind leaves only the first.
            (r"[\r\n]", rf"\s?{CASED}+", rf"\s?{WIDE_MARKS}+", r"(?<!\s)\s++$", f"{CJK_OLD}+", r"\p{N}+")
        ),
    ),
    ("deepseek-coder", PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", f"{CJK_OLD}+", r"\p{N}"))),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", PreTokenizer((TRIPLES, f"{CJK_KANA}+", DEEPSEEK3))),
    (
        "spark2_5",
        PreTokenizer(
            (
                TRIPLES,
                f"{CJK_KANA}+",
                _marked(r" ?[\p{P}\p{S}]+", r"[\r\n]|\s+(?!\S)|\s+"),
                r"\p{N}",
            )
        ),
    ),
    ("afmoe", PreTokenizer((_grouped(r"\p{N}", r"(?!\p{N})"), f"{CJK_WIDE}+", DEEPSEEK3))),
    (
        "youtu",
        PreTokenizer((YOUTU_SCRIPTS, _camel(r"\p{N}", f"(?:{CONTRACTION})?")), ignore_merges=True),
    ),
    ("falcon", PreTokenizer((r"[\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"))),
    (
        "starcoder refact command-r smollm codeshell exaone minerva-7b minerva mellum2",
        PreTokenizer((r"\p{N}", GPT2)),
    ),
    (
        "gpt-2 gpt2 gpt-neox phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum "
        "modern-bert jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe",
        PreTokenizer((GPT2,)),
    ),
    ("bloom poro-chat gpt3-finnish", PreTokenizer((BLOOM,))),
    ("viking", PreTokenizer((BLOOM, r"\p{N}"))),
    ("tekken", PreTokenizer((_camel(r"\p{N}"),), ignore_merges=True, add_bos=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", PreTokenizer((GPT4O,))),
    ("granite-embed-multi-97m", PreTokenizer((GPT4O,), ignore_merges=True)),
    ("tiny_aya cohere2moe", PreTokenizer((_grouped(r"\d", r"\b"), GPT4O))),
    ("superbpe", PreTokenizer((r"\p{N}+", _grouped(r"\d", r"(?!\d)")), ends_words=False)),
    (
        "kimi-k2",
        PreTokenizer((r"\p{Han}+|" + _camel(TRIPLES, f"(?:{CONTRACTION})?", r"&&[^\p{Han}]", SYMBOLS),)),
    ),
    (
        "chameleon",
        PreTokenizer(
            (
                "<sentinel:[0-9]+>",
                "IMGIMG[A-I]{1,4}Z",
                r"[\t\n]|    |  ",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                GPT2,
            ),
            add_bos=True,
        ),
    ),
    ("gemma4 granite-embed-multi-311m", PreTokenizer((LINES,), add_bos=True, raw=True, ends_words=False)),
    ("sarvam-moe", PreTokenizer((LINES,), raw=True, ends_words=False)),
)


def _table(rows: Iterable[tuple[str, PreTokenizer]]) -> dict[str, PreTokenizer]:
    return {name: row for names, row in rows for name in names.split()}


PRETOKENIZERS: Mapping[str, PreTokenizer] = _table(_ROWS)
# Pre-tokenizers that drop white space between words, so that text would not round-trip.
REFUSED = frozenset(("whitespace",))
