"""Replicas beside one engine: tokens per second, time to recover from each failure, what routing by known
prefixes gains over taking members in turn, and what long prompts cost others with and without prompts that
one replica computes and another answers. `python bench/fleet.py -m MODEL [--replicas N] [--clients N]`.

Each failure happens while all clients read. Pause: the longest time between two tokens of an answer, of those
that lost their engine and of the others. Back: seconds until all members answer again. Every answer is
compared with that of one engine.

Throughput is that of steps in which all streams decode: tokens that reach this process from the moment when
all answer until the first answer ends, so that no prompt is in the time; answers are read afterwards. With
`--each N` every replica has N streams, and with `--devices` a device of its own:

    python bench/fleet.py -m MODEL --only throughput --counts 1,2,4 --devices cuda:0,cuda:1,cuda:2,cuda:3 \\
        --each 64 --prompt 32 --tokens 512
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from satchel import Model
from satchel.errors import SatchelError
from satchel.runtime.fleet.fleet import Fleet
from satchel.runtime.fleet.move import Move
from satchel.runtime.fleet.router import LeastTime, RoundRobin, RoutingPolicy
from satchel.runtime.sampling import GREEDY
from satchel.runtime.worker import process

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
STEP = 0.002  # seconds between two looks


@dataclass
class Client:
    """Reads one answer."""

    ids: list[int]
    tokens: int
    began: float = 0.0
    came: list[float] = field(default_factory=list)  # times of its tokens
    got: list[int] = field(default_factory=list)
    moved: int = 0  # how often its engine was lost
    error: str = ""

    def read(self, model: Model) -> None:
        self.began = time.perf_counter()
        reply = model.generate(self.ids, max_tokens=self.tokens, sampling=GREEDY, ignore_eos=True)
        try:
            for _ in reply:
                self.came.append(time.perf_counter())
            self.moved = reply.report.restarted
        except SatchelError as error:
            self.error = str(error)
        self.got = list(reply.ids)

    @property
    def between(self) -> list[float]:
        """Seconds between its tokens."""
        return [b - a for a, b in zip(self.came, self.came[1:], strict=False)]

    @property
    def pause(self) -> float:
        return max(self.between, default=0.0)


def crowd(count: int, prompt: int, tokens: int, seed: int = 3) -> list[Client]:
    rng = random.Random(seed)
    return [Client([rng.randrange(100, 250) for _ in range(prompt)], tokens) for _ in range(count)]


def driven(model: Model, clients: list[Client], meanwhile: Callable[[], None] | None = None) -> float:
    """Seconds in which all clients have read; what happens meanwhile begins with the first tokens."""
    started = time.perf_counter()
    with ThreadPoolExecutor(len(clients)) as pool:
        reading = [pool.submit(client.read, model) for client in clients]
        if meanwhile is not None:
            wait(lambda: sum(bool(client.came) for client in clients) >= len(clients) // 4)
            meanwhile()
        for one in reading:
            one.result()
    return time.perf_counter() - started


def wait(done: Callable[[], object]) -> float:
    started = time.perf_counter()
    while not done():
        time.sleep(STEP)
    return time.perf_counter() - started


def fleet_of(model: Model) -> Fleet:
    if model.fleet is None:
        raise SystemExit("bench/fleet.py: expected --replicas of 2 or more")
    return model.fleet


def busiest(fleet: Fleet) -> Any:
    return max(fleet.members.values(), key=lambda member: len(member.service.requests))


HEAD = "| replicas | streams | routing | at each | tokens/s | of one | between tokens | this process |"


def throughput(path: Path, options: dict[str, Any], args: argparse.Namespace) -> None:
    """Tokens per second of 1 and more replicas. At each: how many streams each replica had. This process:
    its processor seconds for each second, of which it has one thread's worth at most for Python.
    """
    print(f"{HEAD}\n|---:|---:|---|---|---:|---:|---:|---:|", flush=True)
    one, devices = 0.0, args.devices.split(",") if args.devices else []
    for count in args.counts:
        how = {**options, "worker": "process", "replicas": count}
        if args.each:
            how |= {"slots": args.each, "context": args.prompt + args.tokens + 16}
        if devices:
            how["device"] = ",".join(devices[:count])
        streams = count * args.each if args.each else args.clients
        with Model.load(path, **how) as model:
            policies: tuple[RoutingPolicy | None, ...] = (None,)
            if model.fleet is not None:
                policies = (RoundRobin(), LeastTime(holders=model.fleet.holders.of))
            for policy in policies:
                if model.fleet is not None and policy is not None:
                    model.fleet.policy = policy
                together(model, crowd(streams, args.prompt, 8))  # compiles the plans
                told = max(
                    (together(model, crowd(streams, args.prompt, args.tokens)) for _ in range(args.rounds)),
                    key=lambda found: found.rate,
                )
                one = one or told.rate
                name = {RoundRobin: "in turns", LeastTime: "by time"}.get(type(policy), "")
                at = "+".join(map(str, told.at_each))
                measured = "never all at once | | | |"
                if told.rate:
                    times, between = f"{told.rate / one:.2f}", f"{1e3 * told.between:.2f} ms"
                    measured = f"{told.rate:,.0f} | {times} | {between} | {told.processor:.2f} |"
                print(f"| {count} | {streams} | {name} | {at} | {measured}", flush=True)


@dataclass(frozen=True)
class Together:
    """How fast streams decoded that all did at once; 0: they never did, as some waited for a slot. between:
    mean seconds between two tokens of a stream. processor: seconds of this process for each second.
    """

    rate: float
    between: float
    at_each: tuple[int, ...]
    processor: float


def together(model: Model, clients: list[Client]) -> Together:
    """Starts all streams, and counts while all decode."""
    replies = [
        model.generate(client.ids, max_tokens=client.tokens, sampling=GREEDY, ignore_eos=True)
        for client in clients
    ]
    handles = [handle for reply in replies if (handle := reply.start()) is not None]
    sequences = [handle.seq for handle in handles]

    def made() -> int:
        return sum(seq.generated for seq in sequences)

    def ended() -> bool:
        return any(seq.finish for seq in sequences)

    wait(lambda: ended() or all(seq.generated for seq in sequences))
    never = ended()
    fleet = model.fleet
    at = [len(m.service.requests) for m in fleet.members.values()] if fleet else [len(clients)]
    began, before, used = time.perf_counter(), made(), time.process_time()
    wait(ended)
    seconds, tokens = time.perf_counter() - began, made() - before
    used = time.process_time() - used
    for reply in replies:
        reply.read()
    between = len(clients) * seconds / max(1, tokens)
    return Together(0.0 if never else tokens / seconds, between, tuple(at), used / seconds)


class Failure:
    """What happens to a fleet under load, and how long it shows."""

    def __init__(
        self, name: str, act: Callable[[Fleet, Model], Any], over: Callable[[Fleet], bool] | None = None
    ) -> None:
        """over: whether it has shown; None: once a process was lost."""
        self.name, self.act, self.over = name, act, over

    def run(self, model: Model, wanted: list[list[int]], args: argparse.Namespace) -> None:
        fleet, clients, back = fleet_of(model), crowd(args.clients, args.prompt, args.tokens), [0.0]
        before = fleet.restarts

        def meanwhile() -> None:
            self.act(fleet, model)

            def settled() -> None:
                wait(lambda: self.over(fleet) if self.over else fleet.restarts > before)
                wait(lambda: all(member.usable for member in fleet.members.values()))
                back[0] = time.perf_counter() - acted

            acted = time.perf_counter()
            watching.append(threading.Thread(target=settled))
            watching[0].start()

        watching: list[threading.Thread] = []
        driven(model, clients, meanwhile)
        watching[0].join()
        equal = sum(client.got == answer for client, answer in zip(clients, wanted, strict=True))
        moved = [client.pause for client in clients if client.moved]
        others = [client.pause for client in clients if not client.moved]
        print(
            f"| {self.name} | {equal} of {len(clients)} | {fleet.restarts - before} | {len(moved)} "
            f"| {max(moved, default=0.0):.2f} s | {max(others, default=0.0):.2f} s | {back[0]:.2f} s |",
            flush=True,
        )


def kill(fleet: Fleet, model: Model) -> None:
    os.kill(busiest(fleet).service.pid, signal.SIGKILL)


def kill_all(fleet: Fleet, model: Model) -> None:
    for member in fleet.members.values():
        os.kill(member.service.pid, signal.SIGKILL)


def stop(fleet: Fleet, model: Model) -> None:
    os.kill(busiest(fleet).service.pid, signal.SIGSTOP)


class Replacing:
    """A replica that is replaced in place."""

    def __init__(self) -> None:
        self._old: Any = None

    def __call__(self, fleet: Fleet, model: Model) -> None:
        self._old = busiest(fleet)
        fleet.replace(self._old.name)

    def over(self, fleet: Fleet) -> bool:
        return fleet.members.get(self._old.name) not in (None, self._old)


def damaged(monkey: type[Move]) -> None:
    """From now on one bit of all moved blocks is wrong."""
    ask = monkey._ask

    def wrong(self: Move, member: Any, most: int, method: str, *given: Any) -> Any:
        if method == "import_kv":
            file = given[1].descriptor
            at = os.fstat(file).st_size // 2
            os.pwrite(file, bytes([os.pread(file, 1, at)[0] ^ 64]), at)
        return ask(self, member, most, method, *given)

    monkey._ask = wrong  # type: ignore[method-assign]


def cut(path: Path, options: dict[str, Any], wanted: list[list[int]], args: argparse.Namespace) -> None:
    """Two hosts, of which one hears nothing for `silent` seconds and more, and is then reached again."""
    import net_hosts
    from cable import Cable

    with tempfile.TemporaryDirectory() as folder:
        key = net_hosts.key_in(Path(folder))
        with (
            net_hosts.EngineHost(key) as first,
            net_hosts.EngineHost(key) as second,
            Cable(int(first.name.rpartition(":")[2])) as cable,
        ):
            names = f"{net_hosts.LOOPBACK}:{cable.port},{second.name}"
            with Model.load(path, **options, engine_host=names, device_key=str(key)) as model:
                driven(model, crowd(args.clients, args.prompt, 4))

                def act(fleet: Fleet, model: Model) -> None:
                    cable.cut.set()
                    threading.Timer(2 * args.silent, cable.cut.clear).start()

                name = f"the network to a host cut for {2 * args.silent:g} s"
                Failure(name, act).run(model, wanted, args)


FRONT = """
import json, sys
import fleet
from satchel import Model
path, names, key, asked = sys.argv[1:]
with Model.load(path, engine_host=names, device_key=key, **json.loads(asked)["options"]) as model:
    print("ready", flush=True)
    clients = [fleet.Client(ids, tokens) for ids, tokens in json.loads(asked)["clients"]]
    fleet.driven(model, clients, lambda: print("answering", flush=True))
    print(json.dumps([client.got for client in clients]), flush=True)
    sys.stdin.read()
"""


def front(path: Path, options: dict[str, Any], wanted: list[list[int]], args: argparse.Namespace) -> None:
    """The program that routes to two hosts is killed while it answers, and begun anew at once: its clients
    ask it again. Their pause is from the kill until the new one answers.
    """
    import net_hosts

    clients = [(c.ids, c.tokens) for c in crowd(args.clients, args.prompt, args.tokens)]
    asked = json.dumps({"options": options, "clients": clients})

    def begun() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", FRONT, str(path), names, str(key), asked]
        paths = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )

    def said(program: subprocess.Popen[str]) -> str:
        assert program.stdout is not None
        return program.stdout.readline().strip()

    with tempfile.TemporaryDirectory() as folder:
        key = net_hosts.key_in(Path(folder))
        with net_hosts.EngineHost(key) as first, net_hosts.EngineHost(key) as second:
            names = f"{first.name},{second.name}"
            with begun() as one:
                assert (said(one), said(one)) == ("ready", "answering")
                one.kill()
            killed = time.perf_counter()
            with begun() as other:
                assert said(other) == "ready"
                back = time.perf_counter() - killed
                assert said(other) == "answering"
                pause = time.perf_counter() - killed
                got = json.loads(said(other))
                other.kill()
    equal = sum(a == b for a, b in zip(got, wanted, strict=True))
    print(
        f"| the program that routes killed, and begun anew | {equal} of {len(wanted)} | 0 | {len(wanted)} "
        f"| {pause:.2f} s | | {back:.2f} s |",
        flush=True,
    )


def head(path: Path, options: dict[str, Any], wanted: list[list[int]], args: argparse.Namespace) -> None:
    """Ray's head is lost for `silent` seconds and more, while engines on two nodes answer."""
    import ray_clusters

    if ray_clusters.MISSING:
        print(f"(Ray's head: {ray_clusters.MISSING})")
        return
    with ray_clusters.cluster(nodes=2, cpus=1) as cluster:
        how = {**options, "threads": 1, "ray": cluster.address, "replicas": "2..2"}
        with Model.load(path, **how) as model:
            fleet = fleet_of(model)
            wait(lambda: sum(m.usable for m in list(fleet.members.values())) == 2)
            driven(model, crowd(args.clients, args.prompt, 4))

            def act(fleet: Fleet, model: Model) -> None:
                cluster.head_node.kill_gcs_server()
                threading.Timer(2 * args.silent, cluster.head_node.start_gcs_server).start()

            name = f"Ray's head lost for {2 * args.silent:g} s"
            Failure(name, act, lambda fleet: True).run(model, wanted, args)


def poison(token: int) -> Callable[[Fleet, Model], None]:
    """A request with the token twice in a row, which ends a process of tests/support/crashing_child.py."""
    kept = []  # a reply that nobody holds is cancelled

    def act(fleet: Fleet, model: Model) -> None:
        reply = model.generate([1, token, token, 2], max_tokens=4, sampling=GREEDY)
        kept.append(reply)
        reply.start()

    return act


def failures(path: Path, options: dict[str, Any], args: argparse.Namespace) -> None:
    """All of them; of `--only lost` those of what begins and routes."""
    with Model.load(path, **options, worker="process") as one:
        clients = crowd(args.clients, args.prompt, args.tokens)
        driven(one, clients)
    wanted = [client.got for client in clients]
    print("| failure | answers equal | processes lost | moved | their pause | others' pause | back |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    front(path, options, wanted, args)
    if args.only == "lost":
        head(path, options, wanted, args)
        return
    how = {**options, "replicas": args.replicas}
    with Model.load(path, **how) as model:
        driven(model, crowd(args.clients, args.prompt, 4))
        replacing = Replacing()
        Failure("a replica replaced in place", replacing, replacing.over).run(model, wanted, args)
        Failure("a process killed (kill -9)", kill).run(model, wanted, args)
        Failure("all processes killed at once", kill_all).run(model, wanted, args)
    cut(path, options, wanted, args)
    with Model.load(path, **how, worker_timeout=args.silent) as model:
        driven(model, crowd(args.clients, args.prompt, 4))
        Failure(f"a process stopped, --worker-timeout {args.silent:g}", stop).run(model, wanted, args)
    with Model.load(path, **how, pools=f"1+{args.replicas - 1}") as model:
        driven(model, crowd(args.clients, args.prompt, 4, seed=8))
        fleet, kept = fleet_of(model), Move._ask
        before = Counter(fleet.meter.facts().outcomes)
        damaged(Move)
        name = "the blocks of all prompts damaged on the way"
        Failure(name, lambda fleet, model: None, lambda fleet: True).run(model, wanted, args)
        Move._ask = kept  # type: ignore[method-assign]
        moves = Counter(fleet.meter.facts().outcomes) - before
        ends = ", ".join(f"{count} {how}" for how, count in moves.items())
        print(f"(moves: {ends or 'none, so nothing was damaged: give a longer --prompt'})", flush=True)
    token = min({*range(3, 100)} - {token for answer in wanted for token in answer})
    os.environ["SATCHEL_TEST_POISON"], process.MODULE = str(token), "crashing_child"
    with Model.load(path, **how) as model:
        driven(model, crowd(args.clients, args.prompt, 4))
        Failure("a request that ends its process", poison(token)).run(model, wanted, args)
    head(path, options, wanted, args)  # the last: Ray may end a process whose head was lost


def prefixes(path: Path, options: dict[str, Any], args: argparse.Namespace) -> None:
    """Conversations of several turns, all at once, each turn behind the whole conversation."""
    print("| routing | prompt tokens cached | first token p50 | p95 |\n|---|---:|---:|---:|")
    for policy in (RoundRobin(), LeastTime()):
        with Model.load(path, **options, replicas=args.replicas) as model:
            driven(model, crowd(args.replicas * 4, args.prompt, 4))
            told = converse(model, policy, args)
        first, cached, tokens = [t[0] for t in told], sum(t[1] for t in told), sum(t[2] for t in told)
        p95 = statistics.quantiles(first, n=20)[-1]
        name = type(policy).__name__
        print(
            f"| {name} | {cached / tokens:.0%} | {statistics.median(first):.3f} s | {p95:.3f} s |", flush=True
        )


def converse(model: Model, policy: RoutingPolicy, args: argparse.Namespace) -> list[tuple[float, int, int]]:
    """Seconds to the first token, cached and all prompt tokens of each turn after the first."""
    fleet_of(model).policy = policy
    rng = random.Random(7)
    starts = [[rng.randrange(100, 250) for _ in range(args.prefix)] for _ in range(args.talks)]

    def talk(ids: list[int]) -> list[tuple[float, int, int]]:
        found = []
        for turn in range(args.turns):
            began = time.perf_counter()
            reply = model.generate(ids, max_tokens=8, sampling=GREEDY, ignore_eos=True)
            next(reply)
            first = time.perf_counter() - began
            reply.read()
            if turn:
                found.append((first, reply.report.cached_tokens, len(ids)))
            ids = [*ids, *reply.ids, *[100 + (turn * 7 + n) % 150 for n in range(24)]]
        return found

    with ThreadPoolExecutor(len(starts)) as pool:
        return [one for talk_ in pool.map(talk, starts) for one in talk_]


def pools(path: Path, options: dict[str, Any], args: argparse.Namespace) -> None:
    """Long prompts, one after another, while other clients read long answers."""
    print("| pools | first token of a long prompt p50 | p99 | between tokens p50 | p99 | moved | equal |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    wanted: list[list[int]] = []
    for how in ("off", "auto", f"1+{args.replicas - 1}"):
        with Model.load(path, **options, replicas=args.replicas, pools=how) as model:
            fleet = fleet_of(model)
            driven(model, [*crowd(args.clients, args.prompt, 8), *crowd(2, args.prefix, 8, 5)])
            moved, steady = fleet.meter.tokens, crowd(args.clients, args.prompt, args.tokens)
            long = crowd(args.talks * args.turns, args.prefix, 8, 9)

            def ask_all(model: Model = model, long: list[Client] = long) -> None:
                for client in long:
                    client.read(model)

            driven(model, steady, ask_all)
            moved = fleet.meter.tokens - moved
        answers = [client.got for client in (*steady, *long)]
        wanted = wanted or answers
        firsts = sorted(1e3 * (client.came[0] - client.began) for client in long)
        between = sorted(1e3 * gap for client in steady for gap in client.between)
        cells = [f"{part(one, share):.1f} ms" for one in (firsts, between) for share in (0.5, 0.99)]
        equal = sum(a == b for a, b in zip(answers, wanted, strict=True))
        told = f"{moved / sum(len(client.ids) for client in long):.0%}"
        print(f"| {how} | {' | '.join(cells)} | {told} | {equal} of {len(wanted)} |", flush=True)


def part(ordered: list[float], share: float) -> float:
    """The number below which this share of them lies."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", help="default: a tiny random model")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("-np", "--slots", type=int, default=8, help="of each replica")
    parser.add_argument("-c", "--context", type=int, default=512)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=32, help="tokens")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--silent", type=float, default=3.0, help="seconds until a stopped process is ended")
    parser.add_argument("--talks", type=int, default=8)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--prefix", type=int, default=256, help="tokens that a conversation begins with")
    parser.add_argument("--counts", help="replicas whose throughput is measured, such as 1,2,4")
    parser.add_argument("--each", type=int, default=0, help="streams and slots of each replica; 0: --clients")
    parser.add_argument("--devices", default="", help="of the replicas, one each, such as cuda:0,cuda:1")
    parser.add_argument("--rounds", type=int, default=2, help="of which the fastest throughput is told")
    parser.add_argument("--only", choices=("throughput", "failures", "lost", "prefixes", "pools"))
    args = parser.parse_args()
    args.counts = [int(n) for n in (args.counts or f"1,{args.replicas}").split(",")]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(args.model) if args.model else _tiny(Path(folder))
        options: dict[str, Any] = {"slots": args.slots, "context": args.context}
        if args.only in (None, "throughput"):
            throughput(path, options, args)
        if args.only in (None, "failures", "lost"):
            failures(path, options, args)
        if args.only in (None, "prefixes"):
            prefixes(path, options, args)
        if args.only in (None, "pools"):
            pools(path, options, args)


def _tiny(folder: Path) -> Path:
    from tiny_file import write_model

    return write_model(folder / "tiny.gguf")


if __name__ == "__main__":
    main()
