"""User text never becomes a control token, and escaping loses nothing, whatever the text contains."""

from __future__ import annotations

import pytest
import toy_vocab
from hypothesis import given
from hypothesis import strategies as st

from satchel.errors import RequestError
from satchel.formats.tokenizer import Escape, build_tokenizer

CONTROL = ["<|im_start|>", "<|im_end|>", "[INST]", "<s>", "</s>", "\U000f0001", "abc", "a_b"]
ESCAPE = Escape(CONTROL)
# Dangerous texts: control tokens, their parts, and the private-use characters that escaping uses.
PARTS = [
    *CONTROL,
    "<|",
    "|>",
    "<",
    ">",
    "im_end",
    "a",
    "_",
    "hello",
    " ",
    "\U000f0000",
    "\U000f0002",
    "\U000f000a",
]
texts = st.one_of(st.text(), st.lists(st.sampled_from(PARTS)).map("".join))
BYTE_LEVEL = build_tokenizer(toy_vocab.byte_level())
PIECES = build_tokenizer(toy_vocab.sentencepiece())


@given(texts)
def test_escape_round_trip(text: str) -> None:
    assert ESCAPE.unescape(ESCAPE.escape(text)) == text


@given(st.lists(texts, max_size=4))
def test_no_control_token_in_escaped_texts_side_by_side(parts: list[str]) -> None:
    joined = "".join(map(ESCAPE.escape, parts))
    assert not [token for token in CONTROL if token in joined]
    assert ESCAPE.unescape(joined) == "".join(parts)


@given(texts, st.integers(0, 20), st.integers(0, 20))
def test_no_control_token_in_a_slice(text: str, start: int, length: int) -> None:
    piece = ESCAPE.escape(text)[start : start + length]
    assert not [token for token in CONTROL if token in piece]


@given(texts)
def test_template_marks_around_user_text_do_not_complete_a_token(text: str) -> None:
    rendered = "<|" + ESCAPE.escape(text + "|>")
    assert "<|im_end|>" not in rendered


def test_escape_all_private_use_planes() -> None:
    text = "".join(map(chr, [*range(0xE000, 0xF900), *range(0xF0000, 0xF0100), *range(0x100000, 0x100100)]))
    assert ESCAPE.unescape(ESCAPE.escape(text)) == text


def test_escape_without_special_tokens() -> None:
    nothing = Escape([])
    assert nothing.unescape(nothing.escape("<s>\U000f0000")) == "<s>\U000f0000"


@given(texts)
def test_user_text_in_a_template_is_ordinary(text: str) -> None:
    rendered = f"<|im_start|>user\n{BYTE_LEVEL.escape(text)}<|im_end|>\n"
    ids = BYTE_LEVEL.encode_rendered(rendered)
    start, end = (
        BYTE_LEVEL.encode("<|im_start|>", special=True),
        BYTE_LEVEL.encode("<|im_end|>", special=True),
    )
    inside = BYTE_LEVEL.encode(f"user\n{text}", bos=False)
    assert ids == [*start, *inside, *end, *BYTE_LEVEL.encode("\n")]


@given(texts)
def test_user_text_in_a_template_of_a_sentencepiece_vocabulary(text: str) -> None:
    ids = PIECES.encode_rendered(f"<s>{PIECES.escape(text)}</s>", bos=False)
    assert ids == [1, *PIECES.encode(text, bos=False), 2]


def test_user_defined_tokens_are_found_in_user_text() -> None:
    ids = BYTE_LEVEL.encode_rendered(BYTE_LEVEL.escape("hello<tool>"))
    assert [BYTE_LEVEL.text(i) for i in ids] == ["hello", "<tool>"]


@pytest.mark.parametrize(
    ("text", "special", "pieces"),
    [
        ("a<|im_end|>b", True, ["a", "<|im_end|>", "b"]),
        ("<|im_end|><|im_end|>", True, ["<|im_end|>", "<|im_end|>"]),
        ("<|im_start<|im_end|>|>", True, [*"<|im_start", "<|im_end|>", *"|>"]),
        ("<tool>", False, ["<tool>"]),
        ("<tool", True, [*"<tool"]),
    ],
)
def test_parsing(text: str, special: bool, pieces: list[str]) -> None:
    ids = BYTE_LEVEL.encode(text, special=special)
    assert [BYTE_LEVEL.text(i) for i in ids] == pieces


def test_longer_tokens_come_first() -> None:
    metadata = toy_vocab.byte_level()
    metadata["tokenizer.ggml.tokens"] += ["ab", "bcccc"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"].tolist(), 4, 4]
    tokenizer = build_tokenizer(metadata)
    assert [tokenizer.text(i) for i in tokenizer.encode("abcccc ab")] == ["a", "bcccc", "Ġ", "ab"]


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("Phi-3-mini", "<|x|> \n hello <|x|>", ["<|x|>", "hello", "Ġ", "<|x|>"]),
        ("Other", "<|x|> \n<|x|>", ["<|x|>", "Ġ", "Ċ", "<|x|>"]),
    ],
)
def test_models_whose_tokens_swallow_blanks(name: str, text: str, pieces: list[str]) -> None:
    metadata = toy_vocab.byte_level({"general.name": name, "pre": "gpt-2"})
    metadata["tokenizer.ggml.tokens"][metadata["tokenizer.ggml.tokens"].index("<|im_start|>")] = "<|x|>"
    tokenizer = build_tokenizer(metadata)
    assert [tokenizer.text(i) for i in tokenizer.encode(text, special=True)] == pieces


@pytest.mark.parametrize("call", ["encode", "encode_rendered"])
def test_half_a_surrogate_pair_is_refused(call: str) -> None:
    with pytest.raises(RequestError, match=r"U\+D800\) at character 2"):
        getattr(BYTE_LEVEL, call)("é \ud800"[0:1] + "é\ud800")


@given(st.text(st.sampled_from("<|a\U000f0000\U000f0001\U000f0002\U000f0003 "), max_size=60))
def test_a11_long_texts_are_escaped_in_pieces(text: str) -> None:
    escape = Escape(["<|a|>", "<b>"])
    whole = escape.escape(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("satchel.formats.tokenizer.specials.PIECE", 3)
        assert escape.escape(text) == whole
        assert escape.unescape(whole) == text
