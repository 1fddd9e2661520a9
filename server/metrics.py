"""Prometheus metrics of the engines and of HTTP. They are collected per scrape; generation does
no work here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from satchel.runtime.engine.stats import Distribution, EngineStats, summed
from satchel.runtime.fleet.fleet import Fleet
from satchel.server.alias import Alias
from satchel.server.connections import CUTS, Connections
from satchel.server.watch import OTHER, HttpTraffic

MOST_MODELS = 100  # models with a label value of their own; all others are summed as OTHER
FINISHES = frozenset(("stop", "length", "cancelled", "deadline", "error"))

# Counters and gauges: a field of EngineStats, and its help text.
TOTALS = {
    "prompt_tokens": "Prompt tokens of finished requests",
    "cached_tokens": "Of these, found in the prefix cache",
    "generated_tokens": "Tokens sampled",
    "steps": "Steps of the engine",
    "preemptions": "Times that a request gave way to others",
    "worker_restarts": "Times that a worker process was begun again",
    "host_moved_out": "Cache blocks moved to host memory",
    "host_moved_back": "Cache blocks moved back from host memory",
    "expert_cache_lookups": "Experts that tokens were routed to in layers with an expert cache",
    "expert_cache_hits": "Of these, found in the expert cache and computed by the GPU",
    "expert_cache_moved_bytes": "Bytes of experts moved into the expert cache",
}
NOW = {
    "waiting": "Requests that wait",
    "running": "Requests that run",
    "kv_blocks": "Blocks of the KV cache, which all slots share",
    "kv_free": "Blocks that are free",
    "kv_kept": "Blocks kept for requests to come",
    "host_blocks": "Cache blocks in host memory",
    "host_bytes": "Bytes of cache in host memory",
}
MEMBERS = {  # of replicas: a field of MemberFacts, and its help text
    "waiting": "Requests of a replica whose first token has not come",
    "running": "Requests of a replica that decode",
    "queued_tokens": "Prompt tokens that a replica has to compute",
    "kv_tokens_free": "Tokens of KV cache that a replica has free or can evict",
    "known_blocks": "Cached blocks that a replica told of",
    "token_seconds": "Seconds of a replica's step with one decoded row, as measured",
    "start_seconds": "Seconds of a replica's cold start, from its beginning until it had loaded the model",
}
SCALING = {  # of fleets that are scaled: a field of ScalingFacts, and its help text
    "wanted": "Replicas that the load asks for",
    "wait_seconds": "Seconds that a new prompt would wait, predicted, mean over the replicas",
}
LLAMA = {  # llama-server's metric names, so that its dashboards work
    "llamacpp:prompt_tokens_total": "prompt_tokens",
    "llamacpp:tokens_predicted_total": "generated_tokens",
    "llamacpp:requests_processing": "running",
    "llamacpp:requests_deferred": "waiting",
}


class Counts(Collector):
    """A snapshot of all counters, as a Prometheus collector.

    engines: the counters of each model that has been loaded, by name. loaded: whether each model is loaded.
    fleets: the replicas of each loaded model that has some.

    Every label has a bounded set of values, whatever clients send and however many models there are. The
    constructor copies what the event loop changes, so that any thread may collect.
    """

    def __init__(
        self,
        engines: Mapping[str, EngineStats],
        loaded: Mapping[str, bool],
        traffic: HttpTraffic,
        aliases: Iterable[Alias],
        connections: Connections,
        fleets: Mapping[str, Fleet] | None = None,
    ) -> None:
        self.engines, self.loaded = labelled(engines), loaded
        self.aliases, self.connections = list(islice(aliases, MOST_MODELS)), connections
        found = list((fleets or {}).items())[:MOST_MODELS]
        self.members = [(model, one) for model, fleet in found for one in fleet.facts()]
        self.moved = [(model, fleet.moved) for model, fleet in found]
        self.moves = [(model, fleet.meter.facts()) for model, fleet in found]
        self.scaling = [(model, fleet.scaling.facts()) for model, fleet in found if fleet.scaling]
        self.requests, self.active = dict(traffic.requests), traffic.active
        self.times = {
            name: {route: histogram.value() for route, histogram in by_route.items()}
            for name, by_route in (("first_byte", traffic.first_byte), ("request", traffic.whole))
        }

    def collect(self) -> Iterator[Metric]:
        yield from self._engines()
        yield from self._histograms()
        yield from self._members()
        yield from self._http()
        yield from self._versions()

    def _engines(self) -> Iterator[Metric]:
        loaded = GaugeMetricFamily("satchel_model_loaded", "1 where the model is loaded", labels=["model"])
        counted: Counter[str] = Counter()
        for at, (name, is_loaded) in enumerate(self.loaded.items()):
            counted[name if at < MOST_MODELS else OTHER] += is_loaded
        for name, count in counted.items():
            loaded.add_metric([name], float(count))
        yield loaded
        for key, text in TOTALS.items():
            total = CounterMetricFamily(f"satchel_{key}", text, labels=["model"])
            for name, stats in self.engines.items():
                total.add_metric([name], getattr(stats, key))
            yield total
        for key, text in NOW.items():
            gauge = GaugeMetricFamily(f"satchel_{key}", text, labels=["model"])
            for name, stats in self.engines.items():
                gauge.add_metric([name], getattr(stats, key))
            yield gauge
        ended = CounterMetricFamily(
            "satchel_requests", "Requests by how they ended", labels=["model", "finish"]
        )
        for name, stats in self.engines.items():
            finished: Counter[str] = Counter()
            for finish, count in stats.requests.items():
                finished[finish if finish in FINISHES else OTHER] += count
            for finish, count in finished.items():
                ended.add_metric([name, finish], count)
        yield ended
        for their, own in LLAMA.items():
            yield GaugeMetricFamily(
                their, "As llama-server has it", sum(getattr(s, own) for s in self.engines.values())
            )

    def _histograms(self) -> Iterator[Metric]:
        names = dict.fromkeys(key for stats in self.engines.values() for key in stats.histograms)
        for key in names:
            family = HistogramMetricFamily(f"satchel_{key}", key.replace("_", " "), labels=["model"])
            for name, stats in self.engines.items():
                add(family, [name], stats.histograms[key])
            yield family

    def _members(self) -> Iterator[Metric]:
        if not self.members:
            return
        labels = ["model", "member"]
        for key, text in MEMBERS.items():
            gauge = GaugeMetricFamily(f"satchel_member_{key}", text, labels=labels)
            for model, one in self.members:
                gauge.add_metric([model, one.member], getattr(one, key))
            yield gauge
        ready = GaugeMetricFamily("satchel_member_ready", "1 where a replica gets requests", labels=labels)
        lost = CounterMetricFamily("satchel_member_lost", "Processes that a replica lost", labels=labels)
        for model, one in self.members:
            ready.add_metric([model, one.member], float(one.state == "ready" and not one.trouble))
            lost.add_metric([model, one.member], one.processes_lost)
        yield from (ready, lost)
        moved = CounterMetricFamily(
            "satchel_requests_moved", "Requests that went on at another replica", labels=["model"]
        )
        for model, count in self.moved:
            moved.add_metric([model], count)
        yield moved
        yield from self._moves()
        for key, text in SCALING.items():
            gauge = GaugeMetricFamily(f"satchel_replicas_{key}", text, labels=["model"])
            for model, facts in self.scaling:
                gauge.add_metric([model], getattr(facts, key))
            yield gauge

    def _moves(self) -> Iterator[Metric]:
        """Of keys and values that go from the replica that computed a prompt to the one that answers."""
        sent = CounterMetricFamily("satchel_kv_moved_bytes", "Bytes of cache blocks moved", labels=["model"])
        spent = CounterMetricFamily(
            "satchel_kv_moved_seconds", "Seconds in which these blocks were moved", labels=["model"]
        )
        ended = CounterMetricFamily(
            "satchel_kv_moves", "Moved prompts by how the move ended", labels=["model", "outcome"]
        )
        for model, facts in self.moves:
            sent.add_metric([model], facts.bytes)
            spent.add_metric([model], facts.seconds)
            for outcome, count in facts.outcomes.items():
                ended.add_metric([model, outcome], count)
        yield from (sent, spent, ended)

    def _http(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "satchel_http_requests", "HTTP requests", labels=["route", "method", "status"]
        )
        for (route, method, status), count in self.requests.items():
            requests.add_metric([route, method, str(status)], count)
        yield requests
        yield GaugeMetricFamily("satchel_http_active", "HTTP requests under way", self.active)
        yield GaugeMetricFamily("satchel_connections", "Connections that are open", self.connections.open)
        yield CounterMetricFamily(
            "satchel_connections_full", "Requests refused for want of a connection", self.connections.refused
        )
        cut = CounterMetricFamily(
            "satchel_connections_cut", "Connections that the server cut", labels=["reason"]
        )
        for reason in CUTS:
            cut.add_metric([reason], self.connections.cuts[reason])
        yield cut
        for name, by_route in self.times.items():
            family = HistogramMetricFamily(
                f"satchel_http_{name}_seconds", f"HTTP {name} seconds", labels=["route"]
            )
            for route, histogram in by_route.items():
                add(family, [route], histogram)
            yield family

    def _versions(self) -> Iterator[Metric]:
        labels = ["alias", "model"]
        requests = CounterMetricFamily("satchel_alias_requests", "Requests by version", labels=labels)
        failed = CounterMetricFamily("satchel_alias_failures", "Of these, failed", labels=labels)
        taken = GaugeMetricFamily(
            "satchel_alias_rolled_back", "1 where a version was taken back", labels=labels
        )
        for alias in self.aliases:
            for version, record in alias.records.items():
                requests.add_metric([alias.name, version], record.requests)
                failed.add_metric([alias.name, version], record.failed)
                taken.add_metric([alias.name, version], float(record.rolled_back))
        yield from (requests, failed, taken)


def labelled(engines: Mapping[str, EngineStats]) -> dict[str, EngineStats]:
    """The stats of the first MOST_MODELS models by name, and of all others summed as OTHER."""
    names = list(engines)
    kept = {name: engines[name] for name in names[:MOST_MODELS]}
    others = [engines[name] for name in names[MOST_MODELS:]]
    return kept | {OTHER: summed([*([kept[OTHER]] if OTHER in kept else []), *others])} if others else kept


def add(family: HistogramMetricFamily, labels: list[str], found: Distribution) -> None:
    """Adds the histogram with cumulative counts, as Prometheus defines buckets."""
    buckets, seen = [], 0
    for bound, count in zip((*found.bounds, float("inf")), found.counts, strict=True):
        seen += count
        buckets.append((f"{bound:.6g}" if bound != float("inf") else "+Inf", seen))
    family.add_metric(labels, buckets, found.total)


def rendered(counts: Counts) -> bytes:
    """The metrics in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(counts)
    return generate_latest(registry)
