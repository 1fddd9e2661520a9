"""A converted tokenizer gives the same ids as the libraries that read the checkpoint's own."""

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import toy_checkpoint
import toy_vocab
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from satchel.errors import ModelError
from satchel.formats.convert.post_processor import read_added
from satchel.formats.convert.pretokenizer import candidates, described, find_pretokenizer
from satchel.formats.convert.vocabulary import read_vocabulary
from satchel.formats.gguf import open_gguf
from satchel.formats.tokenizer import build_tokenizer

TEXTS = (
    "Hello, world! It's 2024 and I'LL say \"don't\"... can't we've THEY'RE",
    "def f(x: int) -> str:\n\treturn f'{x:>10}'  # ok\n\n\nclass A(B):\n    pass\r\n",
    "Größe naïve Straße ÉCOLE \u0130stanbul \u01c5 \u00aa \u2126",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם مرحبا بالعالم नमस्ते दुनिया สวัสดีชาวโลก",
    "你好，世界。今天是2024年5月1日！これはテストです。안녕하세요 세계 ①②③ Ⅷ ½",
    "🙂👍🏽👨\u200d👩\u200d👧 ©™ ≠≤→ § ¶ «quoted» …!? ((())) [[x]] {y} a/b//c \\n ~~",
    "   leading  and   trailing    \n \n\t\t x\u00a0y\u3000z\u200b \v\f   ",
    "\n\n\n\n a\n\n b \r\n \r c\n" + " " * 40 + "deep",
    "1234567890 12 345.678,90 1e-5 0xFF 3rd x1y22z333 ٣٤٥ १२३",
    "<|im_start|>user\nhi<|im_end|><tool> </s><s> <unk> [PAD] <0x41>",
    "\x00\x01\x7f\ufffd\ufeff\U0010ffff",
    "",
    " ",
)
LLAMA3 = toy_checkpoint.QWEN2_PATTERN.replace(r"\p{N}| ?", r"\p{N}{1,3}| ?")


def byte_level(*steps: Any, regex: bool = False) -> Any:
    return pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)]
    )


def split(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


# The pre-tokenizers of these families' checkpoints, and GGUF's names for them.
WORDS: dict[str, tuple[bool, Any]] = {
    "qwen2": (False, byte_level(split(toy_checkpoint.QWEN2_PATTERN))),
    "llama-bpe": (True, byte_level(split(LLAMA3))),
    "gpt-2": (False, byte_level(regex=True)),
    "smollm": (False, byte_level(pre_tokenizers.Digits(individual_digits=True), regex=True)),
    "deepseek-coder": (
        False,
        byte_level(
            split(r"[\r\n]"),
            split(r"\s?\p{L}+"),
            split(r"\s?\p{P}+"),
            split("[一-龥ࠀ-一가-\ud7ff]+"),
            pre_tokenizers.Digits(individual_digits=True),
        ),
    ),
}


def trained(words: Any, ignore_merges: bool = False) -> Tokenizer:
    """A BPE vocabulary trained on the texts, with special tokens."""
    made = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    made.pre_tokenizer = words
    made.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([*TEXTS] * 3, trainer)
    made.add_tokens([AddedToken("<tool>", normalized=False)])
    return made


def encode(ours: Any, text: str, special: bool) -> list[int]:
    """Ids of the text without begin and end tokens."""
    found: list[int] = ours.encode(text, special=special, bos=False)
    return found


def convert(folder: Path, rows: int, config: dict[str, Any] | None = None) -> dict[str, Any]:
    return read_vocabulary(folder, config or {}, rows).values


@pytest.mark.parametrize("name", WORDS)
def test_byte_level_ids_are_the_librarys(name: str, tmp_path: Path) -> None:
    ignore_merges, words = WORDS[name]
    theirs = trained(words, ignore_merges)
    theirs.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    values = convert(tmp_path, theirs.get_vocab_size() + 5)
    assert values["tokenizer.ggml.pre"] == name
    assert values["tokenizer.ggml.eos_token_id"] == theirs.token_to_id("<|im_end|>")
    assert values["tokenizer.ggml.tokens"][-1].startswith("[PAD")
    ours = build_tokenizer(values)
    for text in TEXTS:
        assert encode(ours, text, True) == theirs.encode(text).ids, text


@given(text=st.text(st.characters(codec="utf-8"), max_size=40))
def test_byte_level_ids_agree_on_any_text(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    theirs, ours = qwen(tmp_path_factory)
    assert encode(ours, text, True) == theirs.encode(text).ids


_made: list[Any] = []


def qwen(factory: pytest.TempPathFactory) -> Any:
    """One pair for all examples."""
    if not _made:
        folder = factory.mktemp("qwen")
        theirs = trained(WORDS["qwen2"][1])
        theirs.save(str(folder / "tokenizer.json"))
        _made.extend((theirs, build_tokenizer(convert(folder, theirs.get_vocab_size()))))
    return _made


def test_rows_of_the_table_can_be_told_apart_but_for_equal_ones() -> None:
    # `\s*[\r\n]+` and `\s*[\r\n]` match alike, since \s takes the line ends before.
    rows = dict(candidates(True))
    for name, row in rows.items():
        assert find_pretokenizer(Path("x"), described(row), True) == name


@pytest.mark.parametrize(
    "words",
    [
        pre_tokenizers.Whitespace(),
        byte_level(pre_tokenizers.Whitespace()),
        pre_tokenizers.Metaspace(),
        pre_tokenizers.ByteLevel(add_prefix_space=True),
        byte_level(split(r"\p{L}+|\p{N}{1,4}")),
    ],
)
def test_unknown_words_are_refused_with_their_pattern(words: Any, tmp_path: Path) -> None:
    made = trained(WORDS["qwen2"][1])
    made.pre_tokenizer = words
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelError, match=r'pre_tokenizer: expected one that cuts .*"type"') as error:
        convert(tmp_path, 700)
    assert "\n" not in str(error.value)


def test_a_begin_token_is_seen_in_what_the_tokenizer_does(tmp_path: Path) -> None:
    made = trained(WORDS["qwen2"][1])
    for template, bos, eos in (
        ("<|im_start|> $A", True, False),
        ("$A <|im_end|>", False, True),
        ("$A", False, False),
    ):
        special = [
            (text, made.token_to_id(text)) for text in ("<|im_start|>", "<|im_end|>") if text in template
        ]
        made.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
        made.save(str(tmp_path / "tokenizer.json"))
        values = convert(tmp_path, 700)
        assert (values["tokenizer.ggml.add_bos_token"], values["tokenizer.ggml.add_eos_token"]) == (bos, eos)


PLACES = [("<s>", 1), ("</s>", 2), ("<e>", 3)]
POST = (
    processors.BertProcessing(("</s>", 2), ("<s>", 1)),
    processors.RobertaProcessing(("</s>", 2), ("<s>", 1)),
    processors.ByteLevel(trim_offsets=False),
    processors.TemplateProcessing("<s> $A </s> <e>", "<s> $A </s> </s> $B <e>", PLACES),
    processors.TemplateProcessing("$A", "$A </s> $B", PLACES),
    processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing("<s> $A", None, PLACES)]),
)


@pytest.mark.parametrize("post", POST, ids=lambda post: type(post).__name__)
def test_what_is_put_around_a_text_is_what_the_library_puts_there(post: Any) -> None:
    made = Tokenizer(models.BPE({"a": 0, "<s>": 1, "</s>": 2, "<e>": 3}, []))
    made.post_processor = post
    ids, both = made.encode("a").ids, made.encode("a", "a").ids
    at = ids.index(0)
    before, after = ids[:at], ids[at + 1 :]
    wanted = {"add_bos_token": bool(before), "add_eos_token": bool(after)}
    wanted |= {"bos_token_id": before[0]} if len(before) == 1 else {}
    wanted |= {"eos_token_id": after[0]} if len(after) == 1 else {}
    wanted |= {"add_sep_token": True} if len(both) - len(ids) - 1 > 1 else {}
    found = read_added(Path("x"), json.loads(made.to_str())["post_processor"])
    assert found == {f"tokenizer.ggml.{key}": value for key, value in wanted.items()}


@pytest.mark.parametrize(
    "part",
    [
        "ByteLevel",
        {"type": "Unknown"},
        {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>"}}],
            "pair": [],
            "special_tokens": {},
        },
        {"type": "BertProcessing", "cls": ["[CLS]", "1"], "sep": ["[SEP]", 2]},
        {"type": "Sequence", "processors": [{}]},
    ],
)
def test_a_damaged_post_processor_is_refused(part: Any) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json: post_processor: expected TemplateProcessing"):
        read_added(Path("tokenizer.json"), part)


def test_a_checkpoint_is_read_without_the_package_tokenizers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = trained(WORDS["qwen2"][1])
    theirs.save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    values = convert(tmp_path, theirs.get_vocab_size())
    assert values["tokenizer.ggml.pre"] == "qwen2"
    ours = build_tokenizer(values)
    for text in TEXTS:
        assert encode(ours, text, True) == theirs.encode(text).ids


def sentencepiece_model(folder: Path) -> sentencepiece.SentencePieceProcessor:
    """A BPE model with byte tokens, trained on the texts."""
    out = io.BytesIO()
    lines = [re.sub(r"[\x00-\x1f]", " ", text) for text in TEXTS if text.strip()] * 3
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=out,
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(out.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


def test_sentencepiece_ids_are_the_librarys(tmp_path: Path) -> None:
    theirs = sentencepiece_model(tmp_path)
    size = theirs.vocab_size()
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|tool|>": size}))
    values = convert(tmp_path, size + 3, {"bos_token_id": 1, "eos_token_id": 2})
    ours = build_tokenizer(values)
    assert values["tokenizer.ggml.tokens"][size] == "<|tool|>"
    assert values["tokenizer.ggml.token_type"][size] == toy_vocab.USER_DEFINED
    assert ours.specials.bos == 1 and ours.specials.add_bos
    for text in TEXTS:
        if "<" not in text:  # markers in a text are cut out before the library would see them
            assert encode(ours, text, False) == theirs.encode(text), text


def spaced(theirs: sentencepiece.SentencePieceProcessor) -> Tokenizer:
    """The same vocabulary as transformers saves it: merges by score, spaces as U+2581."""
    vocab = {theirs.id_to_piece(i): i for i in range(theirs.vocab_size())}
    pairs = [
        (-theirs.get_score(i), vocab[piece[:cut]], vocab[piece[cut:]], piece[:cut], piece[cut:])
        for piece, i in vocab.items()
        if not theirs.is_byte(i) and not theirs.is_control(i) and not theirs.is_unknown(i)
        for cut in range(1, len(piece))
        if piece[:cut] in vocab and piece[cut:] in vocab
    ]
    made = Tokenizer(
        models.BPE(
            vocab,
            [(a, b) for *_, a, b in sorted(pairs)],
            byte_fallback=True,
            fuse_unk=True,
            unk_token="<unk>",
        )
    )
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return made


def test_a_tokenizer_json_that_was_sentencepiece_keeps_its_ids(tmp_path: Path) -> None:
    theirs = spaced(sentencepiece_model(tmp_path))
    (tmp_path / "tokenizer.model").unlink()
    theirs.save(str(tmp_path / "tokenizer.json"))
    values = convert(tmp_path, theirs.get_vocab_size())
    assert values["tokenizer.ggml.model"] == "llama"
    ours = build_tokenizer(values)
    for text in TEXTS:
        if text and "<" not in text:
            assert encode(ours, text, True) == theirs.encode(text).ids, text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama-bpe", "llama-bpe"),
        pytest.param("qwen2", "qwen2", marks=pytest.mark.nightly),
        ("gpt-2", "gpt-2"),
    ],
)
def test_real_vocabularies_survive_the_way_through_tokenizer_json(
    name: str, words: str, shared: Path, tmp_path: Path
) -> None:
    with open_gguf(shared / "vocabs" / f"ggml-vocab-{name}.gguf") as gguf:
        meta = dict(gguf.metadata)
    tokens = [str(t) for t in meta["tokenizer.ggml.tokens"]]  # type: ignore[union-attr]
    kinds = np.asarray(meta["tokenizer.ggml.token_type"])
    ignore_merges, cutter = WORDS[words]
    merges = [tuple(str(m).split(" ")) for m in meta["tokenizer.ggml.merges"]]  # type: ignore[union-attr]
    plain = {t: i for i, t in enumerate(tokens) if kinds[i] == toy_vocab.NORMAL}
    theirs = Tokenizer(models.BPE(plain, merges, ignore_merges=ignore_merges))
    theirs.pre_tokenizer = cutter
    theirs.save(str(tmp_path / "tokenizer.json"))
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    data["added_tokens"] = [
        {"id": i, "content": t, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for i, t in enumerate(tokens)
        if kinds[i] != toy_vocab.NORMAL
    ]
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    values = convert(tmp_path, len(tokens))
    assert values["tokenizer.ggml.pre"] == words
    ours, before, theirs = (
        build_tokenizer(values),
        build_tokenizer(meta),
        Tokenizer.from_file(str(tmp_path / "tokenizer.json")),
    )
    for text in TEXTS:
        # Qwen's words hold </s>, which every reader of GGUF takes for an end marker.
        if "</s>" not in text:
            assert encode(ours, text, True) == theirs.encode(text, add_special_tokens=False).ids
        assert encode(ours, text, True) == encode(before, text, True)


BAD = [
    (lambda d: d["model"].pop("merges"), "expected BPE"),
    (lambda d: d["model"].update(type="Unigram"), "model.vocab: expected a list of pieces"),
    (lambda d: d["model"].update(type="Other"), "expected BPE, WordPiece or Unigram, got 'Other'"),
    (lambda d: d["model"].update(vocab=[]), "model.vocab"),
    (lambda d: d["model"]["vocab"].update({"zz": 0}), "an id of its own"),
    (lambda d: d["model"]["vocab"].update({"zz": -1}), "an id of its own"),
    (lambda d: d["model"].update(merges=[["a"]]), "model.merges"),
    (lambda d: d["model"].update(merges=["a b c"]), "model.merges"),
    (lambda d: d["model"].update(merges=[["q", "no such token"]]), "model.merges: expected tokens"),
    (lambda d: d.update(pre_tokenizer={"type": "Nope"}), "refuses it"),
    (lambda d: d["model"]["vocab"].update({"zz": 900}), "expected ids below 288"),
]


@pytest.mark.parametrize(("change", "said"), BAD)
def test_a_malformed_tokenizer_is_one_line(change: Any, said: str, tmp_path: Path) -> None:
    data = toy_checkpoint.tokenizer()
    change(data)
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(ModelError, match=re.escape(said)) as error:
        convert(tmp_path, 288)
    assert str(error.value).startswith(str(tmp_path)) and "\n" not in str(error.value)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"model": 3}'])
def test_what_is_no_tokenizer_json_is_one_line(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(raw)
    with pytest.raises(ModelError, match=r"tokenizer\.json") as error:
        convert(tmp_path, 288)
    assert "\n" not in str(error.value)


def test_a_folder_without_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="found neither"):
        convert(tmp_path, 288)
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(ModelError, match="AutoTokenizer"):
        convert(tmp_path, 288)


@given(raw=st.binary(max_size=200))
def test_a_sentencepiece_file_of_any_bytes_is_refused_in_one_line(
    raw: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / "tokenizer.model").write_bytes(raw)
    with pytest.raises(ModelError) as error:
        convert(folder, 288)
    assert "\n" not in str(error.value)


@given(cut=st.integers(0, 3000), put=st.binary(max_size=4))
def test_a_damaged_sentencepiece_file_ends_in_values_or_one_line(
    cut: int, put: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    if not _pieces:
        sentencepiece_model(folder)
        _pieces.append((folder / "tokenizer.model").read_bytes())
    raw = _pieces[0]
    (folder / "tokenizer.model").write_bytes(raw[:cut] + put + raw[cut + len(put) :])
    try:
        assert len(convert(folder, 1000)["tokenizer.ggml.tokens"]) == 1000
    except ModelError as error:
        assert "\n" not in str(error)


_pieces: list[bytes] = []


def test_rows_without_tokens_and_tokens_without_rows(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(toy_checkpoint.tokenizer()))
    found = read_vocabulary(tmp_path, {}, 264)  # <tool> has id 264
    assert len(found.values["tokenizer.ggml.tokens"]) == 264 and "<tool>" in found.notes[0]
    with pytest.raises(ModelError, match="belongs to another model"):
        read_vocabulary(tmp_path, {}, 200)


def test_ends_of_a_generation_beyond_the_first_are_kept(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(toy_checkpoint.tokenizer()))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [263, 262, 5]}))
    values = convert(tmp_path, 288, {"eos_token_id": [263, 262]})
    assert values["tokenizer.ggml.eos_token_id"] == 263
    assert values["tokenizer.ggml.eot_token_id"] == 262


def test_chat_templates_come_from_every_place(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(toy_checkpoint.tokenizer()))
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "plain"}))
    assert convert(tmp_path, 288)["tokenizer.chat_template"] == "plain"
    named = [{"name": "default", "template": "d"}, {"name": "tool-use", "template": "t"}]
    config.write_text(json.dumps({"chat_template": named}))
    values = convert(tmp_path, 288)
    assert (values["tokenizer.chat_template"], values["tokenizer.chat_template.tool_use"]) == ("d", "t")
    assert values["tokenizer.chat_templates"] == ["tool_use"]
    (tmp_path / "chat_template.jinja").write_text("from a file")
    assert convert(tmp_path, 288)["tokenizer.chat_template"] == "from a file"
    config.write_text(json.dumps({"chat_template": 3}))
    with pytest.raises(ModelError, match="chat_template: expected a text"):
        convert(tmp_path, 288)
