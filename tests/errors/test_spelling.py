"""The hint for a misspelt name."""

import pytest

from satchel.errors.spelling import closest, did_you_mean

KNOWN = ("replicas", "context", "draft_model")


@pytest.mark.parametrize(
    ("wrong", "meant"), [("replicaz", "replicas"), ("contxt", "context"), ("", ""), ("port", "")]
)
def test_the_most_similar_name_is_meant(wrong: str, meant: str) -> None:
    assert closest(wrong, iter(KNOWN)) == meant
    assert did_you_mean(wrong, KNOWN) == (f"did you mean {meant}?" if meant else "")


def test_a_name_is_shown_as_it_is_written_there() -> None:
    assert did_you_mean("replicaz", KNOWN, "[{}]") == "did you mean [replicas]?"


def test_without_a_least_ratio_some_name_is_meant() -> None:
    assert closest("zzz", KNOWN) == "" and closest("zzz", KNOWN, 0.0) in KNOWN
