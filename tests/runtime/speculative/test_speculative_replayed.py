"""What the drafter makes of known answers, with steps whose cost is given (bench/draft_replay.py)."""

from __future__ import annotations

from draft_costs import StepCosts
from draft_replay import Encoded, replay

from satchel.runtime.speculative import Speculation

CHEAP = StepCosts([(1, 1.0), (17, 1.2)])


def test_where_an_answer_repeats_its_prompt_long_drafts_follow_each_other() -> None:
    """17 tokens a step, all but a few: the first draft needs two tokens, and a few teach what it costs."""
    text = list(range(1000))
    tally = replay([Encoded("copy", text, text)], CHEAP, Speculation(lookup=True))
    assert tally.accepted == tally.drafted
    assert tally.steps <= 1000 / 17 + 6
