"""OpenTelemetry spans: one per request, with child spans for queue, prefill and decode. Off unless the
environment sets OTEL_EXPORTER_OTLP_ENDPOINT; the extra `telemetry` installs the packages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from satchel.errors import RequestError

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from satchel.runtime.api.async_model import AsyncReply

VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
NS = 10**9

# Facts about the current request for its log line: model, token counts, finish reason.
FACTS: ContextVar[dict[str, Any] | None] = ContextVar("facts", default=None)


def from_environment() -> SpanRecorder:
    """A recorder that exports to the environment's endpoint, or one that does nothing. RequestError where an
    endpoint is set and the packages are missing.
    """
    if not any(os.environ.get(name) for name in VARIABLES):
        return SpanRecorder(None)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise RequestError(f"{error.name} is missing for traces: pip install 'satchel[telemetry]'") from None
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return SpanRecorder(provider.get_tracer("satchel"))


class SpanRecorder:
    """Starts and ends OpenTelemetry spans. Without a tracer it records no spans."""

    def __init__(self, tracer: Tracer | None) -> None:
        self.tracer = tracer

    @contextmanager
    def request(self, method: str, headers: Mapping[str, str], facts: dict[str, Any]) -> Iterator[None]:
        """The span of a request, in the trace that its traceparent header names. facts: the span's
        attributes, set when the request ends.
        """
        token = FACTS.set(facts)
        try:
            if self.tracer is None:
                yield
                return
            from opentelemetry.propagate import extract
            from opentelemetry.trace import SpanKind

            context = extract(dict(headers))
            with self.tracer.start_as_current_span(method, context, kind=SpanKind.SERVER) as span:
                yield
                span.update_name(f"{method} {facts.get('route', '')}".strip())
                span.set_attributes({k: v for k, v in facts.items() if isinstance(v, str | int | float)})
        finally:
            FACTS.reset(token)

    def answered(self, model: str, replies: Sequence[AsyncReply], now: int) -> None:
        """Records the finished completions of a request for the log, and the spans of the first one's phases.
        now: nanoseconds since 1970.
        """
        facts = FACTS.get()
        if not replies or facts is None:
            return
        report = replies[0].report
        facts |= {
            "model": model,
            "prompt_tokens": report.prompt_tokens,
            "cached_tokens": report.cached_tokens,
            "completion_tokens": sum(r.stats.generated for r in replies),
            "finish": report.finish,
        }
        if self.tracer is None:
            return
        end = now
        for name in ("decode", "prefill", "queue"):
            begin = end - round(getattr(report, f"{name}_seconds") * NS)
            self.tracer.start_span(name, start_time=begin).end(end)
            end = begin
        if report.line_seconds:  # the first part of the queue, where there are replicas
            self.tracer.start_span("line", start_time=end).end(end + round(report.line_seconds * NS))
