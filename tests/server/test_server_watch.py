"""Observability of the server: spans, the log, metric names of the dashboard."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest

pytest.importorskip("fastapi")

from satchel.errors import RequestError
from satchel.server import telemetry
from satchel.server.telemetry import SpanRecorder

ROOT = Path(__file__).parents[2]
ASK = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3, "ignore_eos": True}


@pytest.mark.model
def test_a_request_is_a_span_with_its_parts(bundled_model: Path, serving_with: object) -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    trace = "0af7651916cd43dd8448eb211c80319c"
    with serving_with(bundled_model, SpanRecorder(provider.get_tracer("test"))) as server:
        for stream in (False, True):
            headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
            httpx.post(
                f"{server}/v1/chat/completions", json=ASK | {"stream": stream}, headers=headers, timeout=60
            )
    spans = kept.get_finished_spans()
    whole = [s for s in spans if s.name == "POST /v1/chat/completions"]
    assert len(whole) == 2
    for span in whole:
        assert f"{span.context.trace_id:032x}" == trace
        assert span.attributes["completion_tokens"] == 3
        parts = [s for s in spans if s.parent and s.parent.span_id == span.context.span_id]
        assert sorted(p.name for p in parts) == ["decode", "prefill", "queue"]
        assert all(span.start_time - 10**9 <= p.start_time <= p.end_time <= span.end_time for p in parts)


def test_traces_without_their_packages_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(RequestError, match=r"satchel\[telemetry\]"):
        telemetry.from_environment()


@pytest.mark.model
def test_the_dashboard_asks_for_names_that_there_are(server: str) -> None:
    httpx.post(f"{server}/v1/chat/completions", json=ASK, timeout=60)
    text = httpx.get(f"{server}/metrics").text
    there = set(re.findall(r"^# TYPE (\S+)", text, re.M))
    there |= {f"{name}_bucket" for name in there} | {f"{name}_total" for name in there}
    board = json.loads((ROOT / "packaging" / "grafana-dashboard.json").read_text())
    asked = {n for p in board["panels"] for t in p["targets"] for n in re.findall(r"satchel_\w+", t["expr"])}
    assert asked <= there
    assert len(asked) > 8
