"""A fleet's parts that need no process: who is refused after a crash, who gets a member next, what is known
of a member, and what each member gets of the machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satchel.errors import DeviceError, RequestError
from satchel.runtime.api.options import Options
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.request_handle import RequestHandle
from satchel.runtime.fleet import share
from satchel.runtime.fleet.known import Holders, Known
from satchel.runtime.fleet.line import Line
from satchel.runtime.fleet.member import LoadReport, Member
from satchel.runtime.fleet.share import Gpu, numa_cpus, numa_memory, replicas_of, share_of
from satchel.runtime.fleet.speeds import Speeds
from satchel.runtime.fleet.suspects import Suspects
from satchel.runtime.kv.digests import SHORT, BlockDigests
from satchel.runtime.kv.news import MOST_TOLD, BlockNews
from satchel.runtime.kv.prefix import PrefixNode
from satchel.runtime.layers.arch import Cache
from satchel.runtime.scheduler import SchedulerLimits, Sequence
from satchel.runtime.scheduler.lengths import Lengths
from satchel.runtime.worker.replay import LiveRequest
from satchel.runtime.worker.service import WorkerService


def live(client: str = "", weight: float = 1.0, arrived: float = 0.0, **how: Any) -> LiveRequest:
    request = GenerateRequest((1, 2, 3), 8, client=client, weight=weight, **how)
    return LiveRequest(RequestHandle(cast(Any, None), Sequence(request, arrived)))


# Suspects


def test_a_request_that_ends_two_members_alone_is_refused() -> None:
    suspects: Suspects[str, str] = Suspects()
    assert suspects.died(["a", "b", "c"], [], outside=False) is None
    assert suspects.trial("a") > 0 and suspects.trial("d") == 0
    assert suspects.died(["b"], [], outside=False) == "b"
    assert suspects.trial("b") == 0


def test_company_in_the_step_is_no_proof() -> None:
    """A second crash in a step with others may be the fault of a new one, which nobody suspects yet."""
    suspects: Suspects[str, str] = Suspects()
    assert suspects.died(["a"], [], outside=False) is None
    assert suspects.died(["a", "new"], [], outside=False) is None
    first = suspects.trial("a")
    assert first > suspects.trial("new") > 0, "what crashes late has a longer trial each time"


def test_a_call_that_ends_two_members_is_refused_beside_innocent_requests() -> None:
    suspects: Suspects[str, str] = Suspects()
    assert suspects.died(["a"], ["embed"], outside=False) is None
    assert suspects.died(["b", "c"], ["embed"], outside=False) == "embed"


def test_kills_from_outside_count_less() -> None:
    suspects: Suspects[str, str] = Suspects()
    assert suspects.died(["a"], [], outside=True) is None
    assert suspects.trial("a") == 0, "it goes on among the others at once"
    assert suspects.died(["a"], [], outside=True) is None
    assert suspects.died(["a"], [], outside=True) == "a"


def test_the_guilty_one_explains_the_ends_of_the_others() -> None:
    suspects: Suspects[str, str] = Suspects()
    suspects.died(["a", "call"], [], outside=False)
    assert suspects.died(["a"], [], outside=False) == "a"
    suspects.forget(["call"])
    assert suspects.died(["call"], [], outside=False) is None


# The line


def test_the_line_shares_by_weight_across_members() -> None:
    line = Line(SchedulerLimits(), Lengths())
    for at in range(12):
        line.add(live("heavy", 2.0, at))
        line.add(live("light", 1.0, at))
    given: list[str] = []
    for _ in range(9):
        one = line.next(True, 4, 0.0)
        assert one is not None
        given.append(one.handle.seq.client)
        line.place(one, 1.0)
    assert (given.count("heavy"), given.count("light")) == (6, 3)


def test_a_client_below_its_part_does_not_wait_for_room() -> None:
    line = Line(SchedulerLimits(), Lengths())
    for at in range(6):
        line.add(live("many", arrived=at))
    for _ in range(4):
        line.place(cast(LiveRequest, line.next(True, 4, 0.0)), 1.0)
    assert line.next(False, 4, 0.0) is None, "all slots are theirs: the rest waits for room"
    line.add(live("new"))
    found = line.next(False, 4, 0.0)
    assert found is not None and found.handle.seq.client == "new"
    line.place(found, 1.0)
    assert line.placed == {"many": 4, "new": 1}


def test_what_lost_its_member_goes_first_and_urgent_before_patient() -> None:
    line = Line(SchedulerLimits(), Lengths())
    patient, urgent, moved = live(priority=5), live(priority=-5, arrived=1.0), live("other", arrived=2.0)
    moved.begun = True
    for one in (patient, urgent, moved):
        line.add(one)
    assert line.next(False, 1, 2.0) is moved
    line.place(moved, 1.0)
    assert line.next(True, 1, 2.0) is urgent
    assert line.remove(urgent.handle) is urgent and line.remove(urgent.handle) is None
    assert line.next(True, 1, 2.0) is patient and len(line) == 1


# What is known of a member


def digests(*numbers: int) -> list[bytes]:
    return [bytes([n]) * SHORT for n in numbers]


def news(kept: list[bytes] = [], gone: list[bytes] = []) -> dict[str, list[str]]:  # noqa: B006
    return {"kept": [d.hex() for d in kept], "gone": [d.hex() for d in gone]}


def test_known_prefixes_are_those_that_were_told_and_those_under_way() -> None:
    known, prompt = Known(), digests(1, 2, 3, 4)
    assert known.cached(prompt) == 0
    known.told(news(kept=prompt[:2]))
    assert known.cached(prompt) == 2 and known.cached(prompt[:1]) == 1
    known.told(news(gone=prompt[1:2]))
    assert known.cached(prompt) == 1
    known.expect(prompt[:3])
    assert known.cached(prompt) == 3, "a request that computes them is under way"
    known.expect(prompt[:3])
    known.ended(prompt[:3])
    assert known.cached(prompt) == 3
    known.ended(prompt[:3])
    known.clear()
    assert known.cached(prompt) == 0


CHANGES = st.tuples(
    st.sampled_from(("kept", "gone", "expect", "ended", "clear")),
    st.integers(0, 3),
    st.lists(st.integers(1, 6), max_size=4, unique=True),
)


@settings(deadline=None)
@given(st.lists(CHANGES, max_size=40), st.lists(st.integers(1, 6), max_size=6, unique=True))
def test_the_index_of_holders_finds_whom_asking_all_finds(
    changes: list[tuple[str, int, list[int]]], asked: list[int]
) -> None:
    holders = Holders()
    members = [Known(holders, str(n)) for n in range(4)]
    under_way: list[list[list[bytes]]] = [[] for _ in members]
    for what, n, numbers in changes:
        found = digests(*numbers)
        if what == "expect":
            members[n].expect(found)
            under_way[n].append(found)
        elif what == "ended":
            if under_way[n]:
                members[n].ended(under_way[n].pop())
        elif what == "clear":
            members[n].clear()
        else:
            members[n].told(news(**{what: found}))
        lengths = [member.cached(digests(*asked)) for member in members]
        wanted = {str(n) for n, length in enumerate(lengths) if length == max(lengths) > 0}
        assert set(holders.of(digests(*asked))) == wanted
    for n, member in enumerate(members):
        member.clear()
        while under_way[n]:
            member.ended(under_way[n].pop())
    assert not len(holders), "no block is left behind"


@pytest.mark.parametrize(
    "told",
    [
        None, [], {}, {"kept": []}, {"kept": "", "gone": 3}, {"kept": ["zz" * SHORT], "gone": []},
        {"kept": ["00"], "gone": []}, {"kept": [["00" * SHORT]], "gone": []},
        {"kept": ["00" * SHORT] * (MOST_TOLD + 1), "gone": []},
    ],
)  # fmt: skip
def test_news_that_no_member_tells_are_refused(told: Any) -> None:
    with pytest.raises(DeviceError, match="told of blocks what cannot be read"):
        Known().told(told)


@pytest.mark.parametrize(
    "told",
    [
        None, 7, [], [1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, [0.1] * 4],
        [1, 2, 3, 4, 5, 6, 7, [0.1] * 3], [1, 2, 3, 4, -5, 6, 7, [0.1] * 4],
        [1, 2, 3, 4, 1 << 60, 6, 7, [0.1] * 4], [1, 2, 3, 4, 5, 6, 7, [0.1, 0.1, 0.1, float("nan")]],
        [1, 2, 3, 4, 5, 6, 7, [-1.0] * 4], [True, 2, 3, 4, 5, 6, 7, [0.1] * 4],
        ["1", 2, 3, 4, 5, 6, 7, [0.1] * 4],
    ],
)  # fmt: skip
def test_loads_that_no_engine_has_are_refused(told: Any) -> None:
    with pytest.raises(DeviceError, match="sent a load of"):
        LoadReport.read_from(told)


def test_a_view_counts_what_was_routed_and_what_came() -> None:
    service = WorkerService(Path("m.gguf"), Options(slots=2))
    service.cache = Cache(context=64, slots=2)
    member, lengths = Member("0", 0, service), Lengths()
    empty = member.view(lengths)
    assert member.view(lengths, (1.0, 2.0, 3.0, 4.0)).step == (1.0, 2.0, 3.0, 4.0), "as others have measured"
    assert (empty.waiting, empty.running, empty.queued, empty.free) == (0, 0, 0, 128)
    one = live()
    service.adopt(one)
    one.rest(8)  # as its process gets it
    seen = member.view(lengths)
    assert (seen.waiting, seen.running, seen.queued) == (1, 0, 3)
    one.take([7])
    seen = member.view(lengths)
    assert (seen.waiting, seen.running, seen.queued, seen.read) == (0, 1, 0, 4)
    assert seen.remaining == 7.0
    member.told({"load": [0, 1, 0, 4, 96, 256, 99, [0.5, 0.25, 0.125, 0.0]]})
    seen = member.view(lengths)
    assert (seen.free, seen.chunk, seen.step) == (96, 256, (0.5, 0.25, 0.125, 0.0))
    service.adopt(live())
    seen = member.view(lengths)
    assert (seen.slots, seen.running + seen.waiting) == (2, 2), "a third waits until one ends"
    assert seen.free == 93, "what the second will take is no longer free"
    member.lost()
    assert member.load.step == (0.5, 0.25, 0.125, 0.0) and member.load.free == -1


# Digests and news


def node(key: tuple[int, ...], parent: PrefixNode) -> PrefixNode:
    return PrefixNode(key, [0], parent, parent.salt)


def test_digests_depend_on_all_tokens_before_the_salt_and_the_key() -> None:
    key, ids = bytes(range(32)), list(range(12))
    chain = list(BlockDigests(4, key).chain(ids, "salt"))
    assert len(set(chain)) == 3 and chain == list(BlockDigests(4, key).chain(ids, "salt"))
    assert chain[:2] == list(BlockDigests(4, key).chain(ids[:8] + [99] * 4, "salt"))[:2]
    for other in (BlockDigests(4, key).chain(ids, "other"), BlockDigests(4).chain(ids, "salt")):
        assert not {*chain} & {*other}
    root = PrefixNode((), [], None, "salt")
    first = node((0, 1, 2, 3), root)
    assert BlockDigests(4, key).of(node((4, 5, 6, 7), first)) == chain[1] and first.digest == chain[0]


def test_news_are_what_changed_since_they_were_told() -> None:
    news, root = BlockNews(BlockDigests(2)), PrefixNode((), [], None)
    one, two = node((1, 2), root), node((3, 4), root)
    news.joined(one)
    news.joined(two)
    first, second = one.digest, two.digest
    assert {*news.take().kept} == {first, second} and not any(news.take())
    news.held(first)  # the tier takes it
    news.left(one)
    assert not any(news.take()), "the tier has it"
    news.dropped(first)
    assert news.take() == ([], [first])
    news.joined(one)
    news.left(one)
    assert not any(news.take()), "it came and went meanwhile"
    news.clear()
    assert news.take() == ([], [second])


# Shares of the machine


def test_each_member_gets_its_part() -> None:
    options = Options(threads=8, threads_batch=6, host_cache=1000, kv_budget="4GB", worker="thread")
    own = share_of(options, 1, 2)
    assert (own.threads, own.threads_batch, own.host_cache) == (4, 3, 500)
    assert (own.kv_budget, own.sharers, own.worker, own.replicas) == ("2000000000B", 2, "process", 1)
    assert share_of(Options(kv_budget=4096), 0, 4).kv_budget == "1024"
    assert share_of(Options(kv_budget="context"), 0, 4).kv_budget == "context"
    assert share_of(Options(threads=1), 0, 4).threads == 1
    two = [share_of(Options(device="cuda:0,cuda:1"), i, 2) for i in range(2)]
    assert [(o.device, o.sharers) for o in two] == [("cuda", 1), ("cuda:1", 1)]
    four = [share_of(Options(device="cuda:0,cuda:1,cuda:2,cuda:3"), i, 2).device for i in range(2)]
    assert four == ["cuda,cuda:1", "cuda:2,cuda:3"]
    shared = share_of(Options(device="cuda:0", gpu_memory=4 << 30), 1, 2)
    assert (shared.device, shared.sharers, shared.gpu_memory) == ("cuda", 2, 2 << 30)
    with pytest.raises(RequestError, match=r"3 devices cannot be divided among 2 replicas.*--replicas 3"):
        share_of(Options(device="cuda:0,cuda:1,cuda:2"), 0, 2)


@pytest.mark.parametrize("wrong", ["0", "-1", "many", "1.5", "257", ""])
def test_numbers_of_replicas_are_checked(wrong: str) -> None:
    with pytest.raises(RequestError, match=r"replicas is .*expected auto, or a number from 1 to 256"):
        Options(replicas=wrong)


def gpus(*free: int) -> Any:
    return lambda options: [Gpu(f"cuda:{i}", n) for i, n in enumerate(free)]


@pytest.mark.parametrize(
    ("replicas", "free", "count", "device", "said"),
    [
        ("auto", (80, 80, 80), 3, "cuda:0,cuda:1,cuda:2", "3 replicas: one for each GPU"),
        ("auto", (30, 30, 30, 30), 2, "cuda:0,cuda:1,cuda:2,cuda:3", "one for each 2 GPUs"),
        ("auto", (80,), 1, "auto", "there is one GPU"),
        ("auto", (20, 20, 20), 1, "auto", "need more than half of the memory of 3 GPUs"),
        ("2", (80, 80, 80, 80), 2, "cuda:0,cuda:1,cuda:2,cuda:3", ""),
        ("2", (80, 80, 80), 2, "cuda:0,cuda:1", "2 of 3 GPUs are used"),
        ("4", (80, 80), 4, "cuda:0,cuda:1", ""),
        ("4", (80, 80, 80), 4, "cuda:0,cuda:1", "2 of 3 GPUs are used"),
    ],
)
def test_gpus_of_the_machine_are_divided(
    replicas: str, free: tuple[int, ...], count: int, device: str, said: str
) -> None:
    found = replicas_of(Options(replicas=replicas), 40, gpus(*free))
    assert (found.count, found.options.device) == (count, device) and said in found.note
    if count > 1:
        share_of(found.options, 0, count)
    else:
        assert (found.options.replicas, found.options.worker) == (1, "process")


def test_a_processor_has_one_replica_for_each_memory(tmp_path: Path) -> None:
    def nodes(*gigabytes: int) -> Path:
        for i, size in enumerate(gigabytes):
            folder = tmp_path / str(len(gigabytes)) / f"node{i}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "cpulist").write_text("0-3\n")
            (folder / "meminfo").write_text(f"Node {i} MemTotal:  {size << 20} kB\nNode {i} MemFree: 1 kB\n")
        return tmp_path / str(len(gigabytes))

    assert numa_memory(nodes(8, 16)) == [8 << 30, 16 << 30] and numa_memory(tmp_path / "none") == []
    auto, none = Options(replicas="auto"), gpus()
    one = replicas_of(Options(replicas="auto", pools="auto"), 4 << 30, none, nodes(8))
    assert one.count == 1 and (one.options.replicas, one.options.pools) == (1, "off"), (
        "it asks for no fleet again"
    )
    assert one.options.worker == "process"
    two = replicas_of(auto, 4 << 30, none, nodes(8, 16))
    assert two.count == 2 and "NUMA" in two.note
    assert replicas_of(auto, 7 << 30, none, nodes(8, 16)).count == 1, "the smaller memory does not hold it"
    named = replicas_of(Options(replicas="auto", device="cuda:0,cuda:1"), 4 << 30)
    assert named.count == 2 and "one for each device" in named.note
    assert replicas_of(Options(replicas=3, device="cpu"), 4 << 30).count == 3


def machine(root: Path, *cpulists: str) -> Path:
    """A made-up /sys/devices/system/node."""
    for i, cpus in enumerate(cpulists):
        (root / f"node{i}").mkdir(parents=True)
        (root / f"node{i}" / "cpulist").write_text(cpus)
    return root


def test_members_are_pinned_to_the_nodes_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eleven nodes have numbers that do not sort as text; one has memory only."""
    monkeypatch.setattr(share, "usable", lambda: frozenset(range(64)))
    monkeypatch.setattr(share, "cores", lambda: 20)
    nodes = machine(tmp_path / "many", *(f"{2 * i}-{2 * i + 1}" for i in range(10)), "\n")
    assert numa_cpus(nodes) == [(2 * i, 2 * i + 1) for i in range(10)]
    two = machine(tmp_path / "two", "0-3,8-11\n", "4-7,12-15\n")
    shares = [share_of(Options(), i, 2, two) for i in range(2)]
    assert [(s.cpus, s.threads) for s in shares] == [
        ((0, 1, 2, 3, 8, 9, 10, 11), 8), ((4, 5, 6, 7, 12, 13, 14, 15), 8),
    ]  # fmt: skip
    four = [share_of(Options(device="cpu"), i, 4, two) for i in range(4)]
    assert [s.cpus[0] for s in four] == [0, 4, 0, 4] and {s.threads for s in four} == {4}
    assert share_of(Options(threads=6), 0, 2, two).threads == 3, "the user says how many"
    for count in (1, 3):
        assert share_of(Options(), 0, count, two).cpus == (), "they do not divide evenly"
    assert share_of(Options(device="cuda:0,cuda:1"), 0, 2, two).cpus == (), "a GPU does the work"
    assert share_of(Options(), 0, 2, machine(tmp_path / "one", "0-15\n")).cpus == ()
    assert share_of(Options(), 0, 2, machine(tmp_path / "bad", "0-3", "x")).cpus == ()
    assert share_of(Options(), 0, 2, tmp_path / "none").cpus == ()


def test_processors_that_this_process_may_not_use_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share, "usable", lambda: frozenset({1, 2, 5}))
    two = machine(tmp_path / "two", "0-3\n", "4-7\n")
    assert numa_cpus(two) == [(1, 2), (5,)]
    monkeypatch.setattr(share, "usable", lambda: frozenset({1, 2}))
    assert share_of(Options(), 0, 2, two).cpus == (), "it has one node"


def test_members_with_the_same_hardware_take_equally_long() -> None:
    """Of 16 rows, 0.2 ms each and nothing else, and 3.2 ms whatever the rows: measured alike."""

    def member(name: str, hardware: str, steps: int, *step: float) -> Member:
        service = WorkerService(Path("m.gguf"), Options())
        service.hardware = hardware
        one = Member(name, 0, service)
        one.told({"load": [0, 16, 0, 4, 96, 256, steps, [*step, 1e-4, 0.0]]})
        return one

    rows, fixed = member("0", "H200", 90, 0.0, 2e-4), member("1", "H200", 60, 3.2e-3, 0.0)
    young, other = member("2", "H200", 3, 9.0, 9.0), member("3", "H100", 50, 4e-3, 1e-4)
    unseen = member("4", "L4", 3, 9.0, 9.0)
    speeds = Speeds([rows, fixed, young, other, unseen])
    a, b, _, _ = speeds.of(rows)
    assert speeds.of(rows) == speeds.of(fixed) == speeds.of(young) and a + 16 * b == pytest.approx(3.2e-3)
    assert speeds.of(other) == other.load.step, "of other hardware"
    assert speeds.of(unseen) == rows.load.step, "until it has learned, as the one that has learned most"
