"""Published encoder checkpoints: pooling, pre-tokenization and ranking of pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import families
import mixed_families as mixed
import numpy as np
import pytest
import toy_checkpoint as toy
import toy_sentences as sentences

from satchel.errors import ModelError, RequestError
from satchel.formats.convert.write import write_source
from satchel.runtime.api.model import Model
from satchel.runtime.layers.blocks import alibi_slopes
from satchel.runtime.tasks.rerank import segment_ids_of
from satchel.runtime.weights.sources import open_checkpoint

SHAPES = json.loads(mixed.STEM.with_suffix(".json").read_text())


def folder_of(case: str, folder: Path, **changes: Any) -> Path:
    """A checkpoint of the case with its tokenizer."""
    values = families.values_of(SHAPES[case])
    source = families.write(folder / case, mixed.config(case) | changes, values)
    return mixed.with_tokenizer(source, case)


def converted(source: Path) -> Path:
    with open_checkpoint(source) as opened:
        return write_source(opened, source.with_suffix(".gguf"))[0]


@pytest.mark.parametrize("case", mixed.RERANKERS)
def test_a_classifier_ranks_as_transformers_does(case: str, tmp_path: Path) -> None:
    """Pairs in the checkpoint's own format, with segment ids."""
    with np.load(mixed.STEM.with_suffix(".npz")) as stored:
        want = 1 / (1 + np.exp(-stored[case].astype(np.float64)))
    path = converted(folder_of(case, tmp_path))
    with Model.load(path, cache_type="f32", threads=1, slots=3) as model:
        found = model.rerank(sentences.QUERY, list(sentences.DOCUMENTS))
        assert model.rerank(sentences.QUERY, [sentences.DOCUMENTS[1]])[0].score == found_score(found, 1)
    assert np.allclose([found_score(found, i) for i in range(len(want))], want, atol=2e-6)
    assert np.ptp(want) > 1e-3, "documents that all score alike show nothing"
    assert [r.index for r in found] == np.argsort(-want, kind="stable").tolist()


def found_score(found: list[Any], index: int) -> float:
    return next(float(r.score) for r in found if r.index == index)


def test_kinds_begin_after_the_first_text() -> None:
    assert segment_ids_of([2, 7, 8, 3, 9, 3], 3) == [0, 0, 0, 0, 1, 1]
    assert (
        segment_ids_of([2, 7], 3) == [0, 0]
        and segment_ids_of([], 3) == []
        and segment_ids_of([3], None) == [0]
    )


TEXTS = (
    "bad cab",
    "  bad\n\tcab ",
    "",
    "fed xyz Bad",
    "a" * 300,
    "naïve 世界 bee",
    "bee  bee",
)


@pytest.mark.parametrize(("case", "kind"), [("bert_reranker", "bert"), ("xlm_roberta_reranker", "t5")])
def test_words_are_cut_as_the_checkpoints_tokenizer_cuts_them(case: str, kind: str, tmp_path: Path) -> None:
    source = folder_of(case, tmp_path)
    own, _ = mixed.TOKENIZERS.get(case, sentences.wordpiece)(toy.VOCAB)
    own.encode_special_tokens = True
    with Model.load(converted(source), threads=1) as model:
        assert model.tokenizer.kind == kind
        for text in TEXTS:
            assert model.tokenize(text) == own.encode(text).ids, text


def pooled(source: Path, pooling: dict[str, Any] | None, *modules: str, **settings: Any) -> Path:
    """The folder with the files that sentence-transformers adds to a model."""
    kinds = [*modules] if modules else ["models.Transformer", "models.Pooling", "models.Normalize"]
    paths = {"Pooling": "1_Pooling"}
    listed = [
        {
            "idx": i,
            "name": str(i),
            "path": paths.get(k.split(".")[-1], ""),
            "type": f"sentence_transformers.{k}",
        }
        for i, k in enumerate(kinds)
    ]
    (source / "modules.json").write_text(json.dumps(listed))
    (source / "1_Pooling").mkdir(exist_ok=True)
    if pooling is not None:
        (source / "1_Pooling" / "config.json").write_text(
            json.dumps({"word_embedding_dimension": 64} | pooling)
        )
    (source / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64} | settings))
    return source


@pytest.mark.parametrize(
    ("pooling", "kind"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_lasttoken": True, "include_prompt": True}, "last"),
        ({"pooling_mode": "cls"}, "cls"),
    ],
)
def test_a_folders_pooling_is_the_files(pooling: dict[str, Any], kind: str, tmp_path: Path) -> None:
    path = converted(pooled(folder_of("bert", tmp_path), pooling))
    with Model.load(path, threads=1) as model:
        assert np.array_equal(model.embed("bad cab"), model.embed("bad cab", pooling=kind))
        others = {"mean", "cls", "last"} - {kind}
        assert not any(
            np.array_equal(model.embed("bad cab"), model.embed("bad cab", pooling=o)) for o in others
        )


REFUSED: list[tuple[dict[str, Any] | None, tuple[str, ...], dict[str, Any], str]] = [
    ({"pooling_mode_max_tokens": True}, (), {}, "pooling mode"),
    ({"pooling_mode_max_tokens": True, "pooling_mode_cls_token": True}, (), {}, "pooling mode"),
    ({}, (), {}, "pooling mode"),
    ({"pooling_mode": "weightedmean"}, (), {}, "pooling mode"),
    ({"pooling_mode_cls_token": True, "include_prompt": False}, (), {}, "include_prompt"),
    (None, (), {}, "1_Pooling"),
    ({"pooling_mode_cls_token": True}, ("models.Pooling", "models.Dense"), {}, "Dense"),
    (
        {"pooling_mode_cls_token": True},
        ("models.Pooling", "models.Pooling"),
        {},
        "Pooling",
    ),
    ({"pooling_mode_cls_token": True}, (), {"do_lower_case": True}, "do_lower_case"),
]


@pytest.mark.parametrize(("pooling", "modules", "settings", "said"), REFUSED)
def test_what_would_change_vectors_is_refused_by_name(
    pooling: dict[str, Any] | None,
    modules: tuple[str, ...],
    settings: dict[str, Any],
    said: str,
    tmp_path: Path,
) -> None:
    source = pooled(folder_of("bert", tmp_path), pooling, *modules, **settings)
    with pytest.raises(ModelError) as caught:
        converted(source)
    assert said in str(caught.value) and "\n" not in str(caught.value)


UNKNOWN: list[tuple[str, dict[str, Any], str]] = [
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
    ("bert", {"hidden_act": "relu"}, "hidden_act"),
    ("xlm_roberta", {"pad_token_id": 0}, "pad_token_id"),
    ("xlm_roberta", {"max_position_embeddings": 3}, "context"),
    ("nomic_bert", {"activation_function": "gelu"}, "activation_function"),
    ("nomic_bert", {"moe_every_n_layers": 2}, "moe_every_n_layers"),
    ("nomic_bert", {"rotary_emb_interleaved": True}, "rotary_emb_interleaved"),
    ("nomic_bert", {"rope_parameters": {"rope_type": "dynamic"}}, "rope_parameters"),
    ("jina_bert_v2", {"feed_forward_type": "original"}, "feed_forward_type"),
    ("jina_bert_v2", {"position_embedding_type": "absolute"}, "position_embedding_type"),
    ("modern_bert", {"layer_types": ["sliding_attention"] * 4}, "layer_types"),
    ("modern_bert", {"hidden_activation": "relu"}, "hidden_activation"),
    ("modern_bert", {"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling"),
    ("modern_bert", {"local_attention": None}, "local_attention"),
    ("modern_bert_reranker", {"classifier_pooling": "max"}, "classifier_pooling"),
]


@pytest.mark.parametrize(("case", "changes", "said"), UNKNOWN)
def test_an_unknown_variant_is_refused_by_name(
    case: str, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError) as caught:
        converted(folder_of(case, tmp_path, **changes))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_tokenizers_that_gguf_cannot_say_are_refused(tmp_path: Path) -> None:
    source = folder_of("xlm_roberta_reranker", tmp_path)
    path = source / "tokenizer.json"
    good = json.loads(path.read_text())
    for change, said in (
        ({"normalizer": {"type": "Lowercase"}}, "normalizer"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "%%%"}}, "precompiled_charsmap"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAEAAA=="}}, "precompiled_charsmap"),
        ({"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "never"}}, "pre_tokenizer"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "pre_tokenizer"),
        ({"model": good["model"] | {"vocab": [["a", None]]}}, "model.vocab"),
        ({"model": good["model"] | {"byte_fallback": True}}, "byte_fallback"),
    ):
        path.write_text(json.dumps(good | change))
        with pytest.raises(ModelError, match=said):
            converted(source)


def test_a_text_ends_with_what_its_tokenizer_adds(tmp_path: Path) -> None:
    """The tokenizer of an embedding decoder (Qwen 3 Embedding) ends its input with another token than the one
    that ends an answer.
    """
    source = pooled(toy.write(tmp_path / "m", "qwen3"), {"pooling_mode_lasttoken": True})
    data = json.loads((source / "tokenizer.json").read_text())
    ends = next(t["id"] for t in data["added_tokens"] if t["content"] == "<|im_start|>")
    piece = {"id": "<|im_start|>", "ids": [ends], "tokens": ["<|im_start|>"]}
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": piece},
    }
    (source / "tokenizer.json").write_text(json.dumps(data))
    with Model.load(converted(source), threads=1) as model:
        assert model.tokenize("a b")[-1] == ends and ends not in model.tokenize("a b", bos=False)
        assert model.tokenizer.vocab.index["<|im_end|>"] in model.tokenizer.eog
        assert np.array_equal(model.embed("a b"), model.embed("a b", pooling="last"))


def test_a_text_is_read_whole_or_refused(tmp_path: Path) -> None:
    """A text may be as long as the context, whatever a step holds; it is never cut."""
    path = converted(folder_of("jina_bert_v2", tmp_path, max_position_embeddings=1024))
    text = [int(t) for t in np.random.default_rng(2).integers(5, toy.VOCAB, 1024)]
    with Model.load(path, threads=2, cache_type="f32") as model:
        whole = model.embed([text, text[:700]])
        with pytest.raises(RequestError, match=r"1025 tokens, the context holds 1024"):
            model.embed([[*text, 7]])
    with Model.load(path, threads=1, batch=700, cache_type="f32") as model:
        assert np.array_equal(model.embed([text[:700]])[0], whole[1])
        with pytest.raises(RequestError, match="reads a text in one step"):
            model.embed([text])


def test_slopes_are_those_of_the_paper() -> None:
    """ALiBi: 8 heads have powers of 1/2; 6 heads those of four, then two of the eight between them."""
    assert alibi_slopes(8).tolist() == [2.0**-n for n in range(1, 9)]
    assert alibi_slopes(6, 2.0).tolist() == pytest.approx([2 * 2.0**-n for n in (2, 4, 6, 8, 1, 3)])
    assert alibi_slopes(1).tolist() == [2.0**-8]
