"""Simulates fleets of 1 to 1,000 engines under a simulated clock and prints tables: the router beside an
oracle, round robin and other policies; unlike, lost, leaving and joining members; the cost of a choice;
autoscaling; prefill and decode pools. docs/fleet-simulation.md shows them.

    python bench/fleet_simulation.py scale --engines 1 8 64
    python bench/fleet_simulation.py events
    python bench/fleet_simulation.py choices
    python bench/fleet_simulation.py autoscale
    python bench/fleet_simulation.py pools
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from time import process_time, thread_time

import numpy as np
from fleet_policies import Affinity, LeastQueue, LMetric, Oracle, alone
from fleet_traffic import CODE, CONVERSATION, Agents, hot, plain, steps
from simulated_engine import EngineSpec
from simulated_fleet import Arriving, Happening, Outcome, SimulatedFleet

from satchel.runtime.fleet.autoscale import Decision, Limits, wanted
from satchel.runtime.fleet.pools import KVLink, PrefillPools
from satchel.runtime.fleet.router import Ask, LeastTime, RoundRobin, RoutingPolicy, View, wait

SPEC = EngineSpec()
KV_BYTES = 131_072  # of a token: 8B, 32 layers, 8 heads of 128, f16 keys and values
POLICIES: dict[str, Callable[[SimulatedFleet], RoutingPolicy]] = {
    "oracle": lambda fleet: Oracle(fleet),
    "router": lambda fleet: LeastTime(holders=fleet.holding),
    "round robin": lambda fleet: RoundRobin(),
    "least queue": lambda fleet: LeastQueue(),
    "prefix hash": lambda fleet: Affinity(),
    "LMetric": lambda fleet: LMetric(),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run gave. Seconds but for shares."""

    finish: float  # mean time from arrival to the last token
    p50: float  # of the first token
    p99: float
    computed: float  # share of prompt tokens that were computed
    busy: float  # share of the members' time
    choice: float  # microseconds a choice took
    cpu: float  # seconds that the simulation took


def figures(outcome: Outcome, cpu: float) -> Figures:
    works = outcome.works
    firsts = np.array([w.first - w.arrived for w in works])
    return Figures(
        fmean(w.ended - w.arrived for w in works),
        float(np.percentile(firsts, 50)),
        float(np.percentile(firsts, 99)),
        sum(w.computed for w in works) / sum(w.prompt for w in works),
        outcome.busy / outcome.member_seconds,
        1e6 * outcome.chosen / len(works),
        cpu,
    )


def simulate(
    specs: Mapping[str, EngineSpec],
    policy: Callable[[SimulatedFleet], RoutingPolicy],
    traffic: Arriving,
    every: float = 0.0,
    happenings: Sequence[Happening] = (),
) -> Figures:
    before = process_time()
    outcome = SimulatedFleet(specs, policy, traffic, every, happenings).run()
    return figures(outcome, process_time() - before)


def fleet(engines: int, spec: EngineSpec = SPEC) -> dict[str, EngineSpec]:
    return {f"m{number}": spec for number in range(engines)}


def kinds(engines: int, requests: int, seed: int) -> dict[str, Callable[[], Arriving]]:
    """Traffic that keeps so many engines busy: requests a second of an engine are 9, 9, 2.5 and 0.5
    sessions."""
    block = SPEC.block
    return {
        "conversation": lambda: plain(CONVERSATION, 9 * engines, requests, block, seed),
        "hot prefixes": lambda: hot(CONVERSATION, 9 * engines, requests, block, seed),
        "code": lambda: plain(CODE, 2.5 * engines, requests, block, seed),
        "agents": lambda: Agents(0.5 * engines, max(1, requests // 31), block, seed),
    }


def row(cells: Iterable[object]) -> None:
    print("| " + " | ".join(str(c) for c in cells) + " |", flush=True)


def head(*titles: str) -> None:
    row(titles)
    row("---" if n < 2 else "--:" for n in range(len(titles)))


def shown(figures: Figures, oracle: Figures | None, turns: Figures | None) -> list[str]:
    def by(other: Figures | None, name: str) -> str:
        return "" if other is None else f"{getattr(figures, name) / getattr(other, name):.2f}"

    return [
        f"{figures.finish:.3f}",
        f"{1e3 * figures.p50:.1f}",
        f"{1e3 * figures.p99:.0f}",
        "/".join(by(oracle, name) for name in ("finish", "p50", "p99")),
        "/".join(by(turns, name) for name in ("finish", "p50", "p99")),
        f"{100 * figures.computed:.0f} %",
        f"{100 * figures.busy:.0f} %",
        f"{figures.choice:.0f}",
    ]


TITLES = (
    "traffic",
    "policy",
    "finish s",
    "first p50 ms",
    "p99 ms",
    "by oracle",
    "by round robin",
    "computed",
    "busy",
    "choice us",
)


def compare(
    name: str,
    specs: Mapping[str, EngineSpec],
    traffic: Callable[[], Arriving],
    policies: Sequence[str],
    every: float = 0.0,
    happenings: Sequence[Happening] = (),
) -> dict[str, Figures]:
    """Prints a row for each policy under the same traffic."""
    found = {
        p: simulate(specs, POLICIES[p], traffic(), every if p != "oracle" else 0.0, happenings)
        for p in policies
    }
    for policy, result in found.items():
        row([name, policy, *shown(result, found.get("oracle"), found.get("round robin"))])
    return found


def bound(traffic: Arriving) -> tuple[float, float]:
    """Mean seconds to the last, and the median to the first token that no placement can beat. Traffic that
    does not depend on answers alone.
    """
    bounds = alone([(w.prompt, w.answer, w.digests) for w in traffic.arrivals()], SPEC)
    return fmean(last for _, last in bounds), float(np.median([first for first, _ in bounds]))


def scale(
    engines: Sequence[int], requests: int, seed: int, only: Sequence[str], policies: Sequence[str]
) -> None:
    for n in engines:
        print(f"\n{n} engines, {requests} requests, seed {seed}\n", flush=True)
        head(*TITLES)
        for name, traffic in kinds(n, requests, seed).items():
            if name in only:
                compare(name, fleet(n), traffic, policies)
                if name != "agents":
                    finish, first = bound(traffic())
                    row([name, "alone (bound)", f"{finish:.3f}", f"{1e3 * first:.1f}", *[""] * 6])


def events(requests: int, seed: int) -> None:
    """Eight engines: one at half speed; one lost and back; two leave and two join; old reports; little
    memory."""
    n, block = 8, SPEC.block
    head(*TITLES)
    policies = ("oracle", "router", "round robin", "least queue", "LMetric")
    seconds = requests / (7 * n)

    def traffic() -> Arriving:
        return hot(CONVERSATION, 7 * n, requests, block, seed)

    compare("one at half speed", fleet(n) | {"m0": SPEC.slower(2)}, traffic, policies)
    lost = [Happening(seconds * 0.3, "lost", "m0"), Happening(seconds * 0.6, "join", "m0", SPEC)]
    compare("one lost and back", fleet(n), traffic, policies, happenings=lost)
    moving = [
        Happening(seconds * 0.2, "leave", "m0"),
        Happening(seconds * 0.4, "join", "m8", SPEC),
        Happening(seconds * 0.6, "leave", "m1"),
        Happening(seconds * 0.8, "join", "m9", SPEC),
    ]
    compare("two leave, two join", fleet(n), traffic, policies, happenings=moving)
    compare("reports of 0.1 s", fleet(n), traffic, policies, every=0.1)
    compare("reports of 1 s", fleet(n), traffic, policies, every=1.0)
    tight = SPEC._replace(tokens=40_000)
    compare("40,000 tokens of KV", fleet(n, tight), traffic, policies)


def choices() -> None:
    """CPU time of one choice among members that are known."""
    head("members", "compared", "us a choice")
    for n in (8, 64, 1000):
        views = {
            f"m{i}": View(
                i % 5, 700 * (i % 5), i % 31, 1200 * (i % 31), 150.0, 400_000, 64, 512, SPEC.step, found
            )
            for i, found in enumerate([lambda digests: 0] * n)
        }
        ask = Ask(1200, 150.0, [b""] * 18)
        for most in sorted({16, 64, n} & set(range(n + 1))):
            policy = LeastTime(most, lambda digests: ("m1", "m2"))
            times = []
            for _ in range(5):
                before = thread_time()
                for _ in range(max(1, 4000 // most)):
                    policy.choose(ask, views)
                times.append((thread_time() - before) / max(1, 4000 // most))
            row([n, most, f"{1e6 * min(times):.0f}"])


class Scaling:
    """A fleet that grows and shrinks by the predicted wait, which is looked at every second. A replica serves
    20 s after it was asked for.
    """

    STARTS = 20.0

    def __init__(self, traffic: Arriving, limits: Limits, first: int, until: float) -> None:
        self.limits, self.until = limits, until
        self.fleet = SimulatedFleet(fleet(first), POLICIES["router"], traffic)
        self.decision = Decision(first, 0.0)
        self.starting = 0
        self.serial = first
        self.history: list[tuple[float, int, float]] = []  # time, replicas that serve, mean wait
        self.fleet.at(1.0, self.look)

    def look(self) -> None:
        fleet = self.fleet
        waits = [wait(view) for view in fleet.views.values()]
        self.history.append((fleet.now, len(waits), fmean(waits)))
        self.decision = wanted(waits, fleet.now, self.decision, self.limits)
        for _ in range(self.decision.replicas - len(waits) - self.starting):
            self.starting += 1
            fleet.at(fleet.now + self.STARTS, self.join)
        for _ in range(len(waits) + self.starting - self.decision.replicas):
            fleet.leave(min(fleet.open, key=lambda n: fleet.views[n].running))
        if fleet.now < self.until:
            fleet.at(fleet.now + 1.0, self.look)

    def join(self) -> None:
        self.starting -= 1
        self.serial += 1
        self.fleet.join(f"m{self.serial}", SPEC)


def autoscale(seed: int) -> None:
    """A load of two engines becomes that of eight for two minutes."""
    rates = [(60.0, 16.0), (120.0, 64.0), (320.0, 16.0)]

    def traffic() -> Arriving:
        return steps(CONVERSATION, rates, SPEC.block, seed)

    head("fleet", "first p50 ms", "p99 ms", "finish s", "member-seconds")
    limits = Limits(least=1, most=12, aim=0.1, up=15.0, down=30.0)
    scaling = Scaling(traffic(), limits, 2, 500.0)
    before = process_time()
    outcome = scaling.fleet.run()
    result = figures(outcome, process_time() - before)
    print_scaled("by predicted wait", result, outcome)
    for n in (2, 4, 8):
        outcome = SimulatedFleet(fleet(n), POLICIES["router"], traffic()).run()
        print_scaled(f"{n} engines", figures(outcome, 0.0), outcome)
    print("\nsecond: replicas that serve, mean predicted wait in ms")
    print(
        ", ".join(f"{t:.0f}: {n}, {1e3 * w:.0f}" for t, n, w in scaling.history if round(t) % 20 == 0),
        flush=True,
    )


def print_scaled(name: str, result: Figures, outcome: Outcome) -> None:
    row(
        [
            name,
            f"{1e3 * result.p50:.1f}",
            f"{1e3 * result.p99:.0f}",
            f"{result.finish:.3f}",
            f"{outcome.member_seconds:.0f}",
        ]
    )


def pools(requests: int, seed: int) -> None:
    """Eight engines as one pool, as members that do both and may move, and as four and four."""
    head("traffic", "fleet", "finish s", "first p50 ms", "p99 ms", "per token p50 ms", "p99 ms", "moved")
    split = {f"m{i}": "prefill" if i < 4 else "decode" for i in range(8)}
    links = {"50 GB/s": KVLink(KV_BYTES, 50e9), "1.2 GB/s": KVLink(KV_BYTES, 1.2e9)}
    for name in ("conversation", "hot prefixes", "agents"):
        traffic = kinds(8, requests, seed)[name]
        cases: list[tuple[str, Callable[[SimulatedFleet], RoutingPolicy], KVLink]] = [
            ("8 both, never moved", POLICIES["router"], links["50 GB/s"])
        ]
        for speed, link in links.items():
            cases.append((f"8 both, {speed}", lambda fleet, link=link: PrefillPools({}, link), link))
            cases.append((f"4 + 4, {speed}", lambda fleet, link=link: PrefillPools(split, link), link))
        for title, policy, link in cases:
            simulated = SimulatedFleet(
                fleet(8),
                policy,
                traffic(),
                move=lambda tokens, since, link=link: link.late(tokens, SPEC.chunk, since),
            )
            outcome = simulated.run()
            result = figures(outcome, 0.0)
            # Seconds between two tokens, the mean of each answer.
            between = [(w.ended - w.first) / (w.answer - 1) for w in outcome.works if w.answer > 1]
            row(
                [
                    name,
                    title,
                    f"{result.finish:.3f}",
                    f"{1e3 * result.p50:.1f}",
                    f"{1e3 * result.p99:.0f}",
                    f"{1e3 * float(np.percentile(between, 50)):.2f}",
                    f"{1e3 * float(np.percentile(between, 99)):.2f}",
                    f"{100 * simulated.moved / len(simulated.ended):.0f} %",
                ]
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=("scale", "events", "choices", "autoscale", "pools"))
    parser.add_argument("--engines", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--traffic", nargs="+", default=["conversation", "hot prefixes", "code", "agents"])
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    parser.add_argument("--oracle-among", type=int, default=64, help="members that the oracle looks at")
    given = parser.parse_args()
    POLICIES["oracle"] = lambda fleet: Oracle(fleet, given.oracle_among)
    before = process_time()
    if given.table == "scale":
        scale(given.engines, given.requests, given.seed, given.traffic, given.policies)
    elif given.table == "events":
        events(given.requests, given.seed)
    elif given.table == "choices":
        choices()
    elif given.table == "autoscale":
        autoscale(given.seed)
    else:
        pools(given.requests, given.seed)
    print(f"\n{process_time() - before:.0f} s of one core")


if __name__ == "__main__":
    main()
