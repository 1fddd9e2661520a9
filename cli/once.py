"""Runs one prompt: the common part of `satchel run` and `satchel complete`."""

from __future__ import annotations

import json
import os
import select
import stat
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from satchel.cli.adapters import AdapterOptions
from satchel.cli.grammars import GrammarOptions
from satchel.cli.groups import wrong
from satchel.cli.options import ModelOptions, TextOptions, decoded, open_model
from satchel.cli.replies import CountOptions, ReplyOptions
from satchel.cli.sampling import SamplingOptions
from satchel.cli.speculation import SpeculationOptions
from satchel.runtime.sampling.options import Sampling

if TYPE_CHECKING:
    from satchel.cli.chat.respond import ChatAnswer, ChatRequest, Prompt
    from satchel.runtime.api.model import Model
    from satchel.runtime.api.reply import Stats

INTERRUPTED = 130
PATIENCE = 2.0  # seconds of silence on stdin before a note says that the program waits for it


@dataclass(frozen=True, slots=True)
class Once:
    """One prompt with its options."""

    prompt: str | None
    model: ModelOptions
    text: TextOptions
    sampling: SamplingOptions
    adapters: AdapterOptions
    speculation: SpeculationOptions
    grammar: GrammarOptions
    reply: ReplyOptions
    count: CountOptions
    raw: bool = False  # text completion without a template
    echo: bool = False  # print the prompt first
    as_json: bool = False

    def answer(self) -> int | None:
        """Reads the prompt, loads the model, and prints the answers. Returns the exit code."""
        messages = self._messages(question(self.prompt, self.text))
        request = self._request()
        started = time.perf_counter()
        with open_model(
            self.model,
            self.adapters,
            slots=self.count.slots,
            speculation=self.speculation.speculation(),
            defaults=self.reply.loaded(),
        ) as loaded:
            drawn = self.sampling.sampling(loaded.request_defaults.sampling)
            request = replace(request, sampling=drawn)
            prompt = self._prompt(loaded, messages)
            loading = time.perf_counter() - started
            if self.echo and not self.as_json:
                _print_text(messages[-1]["content"])
            answers = _answers(loaded, prompt, request, self.count, not self.as_json)
            if self.reply.report:
                loaded.bandwidth()  # measures the memory bandwidth, of which the report gives the share
            if self.as_json:
                from satchel.cli.reports import facts

                reported = facts(
                    loaded,
                    answers,
                    loading,
                    report=self.reply.report,
                    logprobs=self.count.logprobs >= 0,
                )
                print(json.dumps(reported, ensure_ascii=False), flush=True)
            _say(answers, loading, self.text.verbose, self.reply.report and not self.as_json)
        return INTERRUPTED if any(answer.stopped for answer in answers) else None

    def _messages(self, asked: str) -> list[dict[str, str]]:
        system = self.text.system_text()
        if system and self.raw:
            raise wrong("-sys", "raw completion has no place for a system prompt")
        messages = [{"role": "system", "content": system}] if system else []
        return [*messages, {"role": "user", "content": asked}]

    def _prompt(self, model: Model, messages: list[dict[str, str]]) -> Prompt:
        """The prompt of the model, once its notes are told."""
        from satchel.cli.console import note

        prompt: Prompt
        if self.raw:
            prompt = model.tokenize(messages[-1]["content"])
        else:
            prompt = model.chat_prompt(messages, reasoning=self.reply.thinking)
            prompt.render(prompt.messages)  # the template may have notes too
        for line in model.notes:
            note(f"satchel: note: {line}")
        return prompt

    def _request(self) -> ChatRequest:
        from satchel.cli.chat.respond import ChatRequest

        drawn, spec = self.sampling.sampling(Sampling()), self.grammar.spec()
        self.count.check(drawn, self.as_json)
        self.reply.check(raw=self.raw, structured=spec is not None)
        return ChatRequest(
            drawn,
            {
                **self.text.generate_kwargs(),
                "grammar": spec,
                "on_overflow": self._overflow(structured=spec is not None),
                "logprobs": self.count.logprobs,
            },
        )

    def _overflow(self, structured: bool) -> str:
        """What a full context means here: raw text and structured output do not shift by default."""
        return self.reply.overflow if self.raw or structured else self.reply.conversation_overflow


def question(argument: str | None, text: TextOptions) -> str:
    """The prompt: stdin (a pipe or file), the files of -f, and the argument, joined by newlines."""
    parts = [_from_stdin(), text.prompt_text(argument)]
    question = "\n".join(part for part in parts if part)
    if not question.strip():
        raise wrong(
            "prompt", 'none given; `satchel run "Why is the sky blue?"` asks, `satchel chat` talks in turns'
        )
    if argument is not None and argument.endswith(".gguf") and Path(argument).is_file():
        raise wrong("prompt", f"{argument} is a file: a model is given by -m")
    return question


def _from_stdin() -> str:
    """The text of stdin if it is a pipe or file; "" for a terminal or device."""
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return ""
    try:
        kind = os.fstat(sys.stdin.fileno()).st_mode
    except OSError:
        kind = 0  # a stream without a file descriptor
    if stat.S_ISCHR(kind):
        return ""
    # Windows selects among sockets alone.
    if stat.S_ISFIFO(kind) and os.name != "nt" and not select.select([sys.stdin], [], [], PATIENCE)[0]:
        print("satchel: note: waiting for text on stdin (`< /dev/null` gives none)", file=sys.stderr)
    return decoded(sys.stdin.buffer.read(), "stdin")


def _print_text(text: str) -> None:
    """The text that goes on, as it was given: what follows stands behind it."""
    from satchel.cli.chat.display import Look

    print(Look.of(sys.stdout).safe(text), end="", flush=True)


def _answers(
    model: Model, prompt: Prompt, request: ChatRequest, counted: CountOptions, shown: bool
) -> list[ChatAnswer]:
    """Generates the answers and writes them to stdout if they are shown: one is streamed, several come at the
    end.
    """
    from satchel.cli.chat.display import AnswerWriter, Look
    from satchel.cli.chat.respond import respond, respond_often

    look = Look.of(sys.stdout)
    if counted.made == 1:
        writer = AnswerWriter(sys.stdout, look) if shown else None
        try:
            return [respond(model, prompt, request, writer)]
        finally:
            if writer is not None:
                writer.finish()
    answers = respond_often(model, prompt, request, counted.n_completions, counted.made)
    for i, answer in enumerate(answers if shown else ()):
        print(f"{chr(10) * (i > 0)}{look.safe(answer.text).rstrip()}", flush=True)
    return answers


def _say(answers: list[ChatAnswer], loading: float, verbose: bool, report: bool) -> None:
    """Writes to stderr why an answer was truncated, and the requested timings and reports."""
    from satchel.cli.chat.display import DIM, Look
    from satchel.cli.chat.respond import counts, notes
    from satchel.cli.console import note
    from satchel.cli.reports import lines, report_rows, timings

    look = Look.of(sys.stderr)
    for i, answer in enumerate(answers):
        for line in notes(answer):
            note(f"satchel: note: {line}")
        if answer.stats.reason:
            note(f"satchel: note: the answer is cut: {answer.stats.reason}{hint(answer.stats)}")
        rows = [
            *(timings(answer, loading) if verbose else ()),
            *(report_rows(answer.reply.report) if report else ()),
        ]
        if rows:
            print("\n" * (i > 0) + "\n".join(lines(rows)), file=sys.stderr)
        elif look.terminal:
            line = look.joined([*counts(answer.stats), f"{loading + answer.seconds:.2f} s"])
            print(look.paint(line, DIM), file=sys.stderr)


def hint(stats: Stats) -> str:
    """A hint for a truncated answer."""
    if "the context of" in stats.reason:
        return "; -c sets another size"
    return "; -n allows more tokens" if stats.finish == "length" else ""
