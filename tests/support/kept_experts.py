"""Prefetched experts of which the CPU keeps a share, which a load decides by measured speeds otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from satchel.runtime.placement.prefetch import Prefetching
from satchel.runtime.weights.prefetch import HostShare, PrefetchPlan


def keep_experts(monkeypatch: pytest.MonkeyPatch, *shares: tuple[int, float]) -> None:
    """Has loads that prefetch take these shares, each from steps of so many tokens on; the first is of the
    smallest step with prefetched weights.
    """
    plan, kept = Prefetching.plan, tuple(HostShare(*share) for share in shares)

    def shared(self: Prefetching, *given: Any) -> PrefetchPlan | None:
        found = plan(self, *given)
        return found and replace(found, min_tokens=kept[0].tokens, host_shares=kept)

    monkeypatch.setattr(Prefetching, "plan", shared)
