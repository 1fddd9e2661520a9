"""Tests of bench/compare.py: the selection of rows, the child processes, and the table.

Most engines here are fakes that speak the same pipe protocol; no test checks a speed.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import compare
import compare_table as table
import pytest
from compare_engines import MODES, Row, command, commands_of, serve
from compare_seats import Child, Crashed, Outcome, Seat, busy_core, measure_row
from serving_process import children

from satchel.errors import RequestError

BENCH = Path(compare.__file__).parent
ROW = Row("tg4", generate=4)
# A fake engine: its word makes it crash, fail or print noise at the named command, or at "mode:command".
FAKE = """
import os, signal, sys
sys.path.insert(0, {bench!r})
import compare_engines
WORD, AT = {word!r}, {at!r}
class Fake:
    mode = ""
    def happen(self, do):
        if AT not in (do, f"{{self.mode}}:{{do}}"):
            return
        if WORD == "crash": os.kill(os.getpid(), signal.SIGSEGV)
        if WORD == "leave": sys.exit("no such luck")
        if WORD == "error": raise ValueError("two\\nlines")
        if WORD == "hang": signal.pause()
        if WORD == "noise": os.write(1, b"noise\\n")
    def load(self, path, threads, mode):
        self.mode = mode
        self.happen("load")
        return {{"version": "fake " + mode, "system": path}}
    def prepare(self, row):
        self.happen("prepare")
        return {{"bytes_per_token": 100, "setting": "s"}} if row.generate else {{}}
    def run(self):
        self.happen("run")
        return 0.5
    def bandwidth(self):
        self.happen("bandwidth")
        return 1000.0
sys.argv = ["", "fake"]
compare_engines.main(compare_engines.commands_of(Fake()))
"""


def fake(word: str = "", at: str = "") -> tuple[str, ...]:
    return (sys.executable, "-c", FAKE.format(bench=str(BENCH), word=word, at=at))


@pytest.fixture
def seats() -> Iterator[list[Seat]]:
    made: list[Seat] = []
    yield made
    for seat in made:
        seat.close()


def seat(
    made: list[Seat], name: str, word: str = "", at: str = "", modes: tuple[str, ...] = ("default",)
) -> Seat:
    made.append(Seat(name, Path("m.gguf"), 1, modes, fake(word, at)))
    return made[-1]


def outcome(model: str, row: Row, peer: tuple[float, ...], ours: tuple[float, ...], **more: Any) -> Outcome:
    samples = {name: s for name, s in ((table.PEER, peer), (table.OURS, ours)) if s}
    facts = {table.OURS: {"bytes_per_token": 100.0}} if row.generate else {}
    return replace(Outcome(model, row, samples, {}, facts), **more)


# ---- the choice of rows


def test_every_row_has_a_name_of_its_own_and_fits_a_step() -> None:
    for subject in compare.SUBJECTS:
        names = [row.name for row in subject.rows]
        assert len(set(names)) == len(names), subject.name
        for row in subject.rows:
            assert row.tokens > 0 and row.sequences <= 512
            assert row.context > row.depth + row.prompt + row.generate


@pytest.mark.parametrize(
    ("only", "rows", "quick", "expected"),
    [
        ("", "pp512", False, {s.name: ["pp512"] for s in compare.SUBJECTS}),
        ("F16", "", False, {"llama-3.2-1b BF16": ["pp512"], "llama-3.2-1b F16": ["pp512", "tg32"]}),
        ("QWEN2.5, bundled", "tg64,tg128", False,
         {"qwen2.5-0.5b Q4_K_M": ["tg64"], "bundled Q4_K_M": ["tg128"]}),
        ("llama-3.2-1b q4_k_m", "PP8192, tg32 @8192,TG32-X8", False,
         {"llama-3.2-1b Q4_K_M": ["tg32 x8", "pp8192", "tg32 @8192"]}),
        ("llama-3.2-1b q4_k_m", "pp512,pp8192,tg32@8192", True, {"llama-3.2-1b Q4_K_M": ["pp512"]}),
    ],
)  # fmt: skip
def test_filters(only: str, rows: str, quick: bool, expected: dict[str, list[str]]) -> None:
    found = compare.select(compare.SUBJECTS, only, rows, quick)
    assert {s.name: [r.name for r in s.rows] for s in found} == expected


def test_quick_leaves_out_what_is_long_and_nothing_else() -> None:
    whole = [r for s in compare.SUBJECTS for r in s.rows]
    quick = [r for s in compare.select(compare.SUBJECTS, "", "", True) for r in s.rows]
    assert [r.name for r in whole if r not in quick] == ["pp8192", "tg32 @8192"]


@pytest.mark.parametrize(
    ("only", "rows", "quick", "said"),
    [
        ("llama-4", "", False, "--only llama-4: expected"),
        ("", "pp511", False, "--rows pp511: expected one of pp512"),
        ("bundled,nope", "", False, "--only nope"),
        ("bundled", "pp8192", False, "no row is left"),
        ("", "pp8192", True, "no row is left"),
    ],
)
def test_filters_that_name_nothing_are_errors(only: str, rows: str, quick: bool, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        compare.select(compare.SUBJECTS, only, rows, quick)


def test_given_files_take_the_rows_of_what_their_name_holds(tmp_path: Path) -> None:
    for name in ("Llama-3.2-1B-Instruct.Q8_0.gguf", "other.gguf"):
        (tmp_path / name).touch()
    pairs = compare.match(compare.given([tmp_path]))
    assert [s.name for s, _ in pairs] == ["llama-3.2-1b Q8_0", "other "]
    assert [r.name for r in pairs[1][0].rows] == ["pp512", "tg64"]
    # "bf16" holds "f16" and must not be taken for it.
    (tmp_path / "llama-3.2-1b-bf16.gguf").touch()
    assert [s.type for s, _ in compare.match([tmp_path / "llama-3.2-1b-bf16.gguf"])] == ["BF16"]
    with pytest.raises(RequestError, match="expected a GGUF file or a folder"):
        compare.given([tmp_path / "none.gguf"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match="expected a GGUF file or a folder"):
        compare.given([tmp_path / "empty"])


# ---- the table


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        ((10.0, 11.0, 30.0), "11.0 ± 11.3"),
        ((500.0, 700.0), "600 ± 141"),
        ((5.0,), "5.0"),
        ((99.99,), "100.0"),
    ],
)
def test_speed_shows_median_and_deviation(samples: tuple[float, ...], text: str) -> None:
    assert table.speed(samples) == text


def test_ratio_is_median_over_median() -> None:
    assert table.ratio(outcome("m", ROW, (1.0, 2.0, 90.0), (5.0, 1.0, 3.0))) == 1.5
    assert table.ratio(outcome("m", ROW, (), (5.0,))) is None
    assert table.ratio(outcome("m", ROW, (5.0,), ())) is None


def test_share_is_of_the_best_reading_of_the_model_and_only_for_rows_that_decode() -> None:
    rows = [
        outcome("m", ROW, (2.0,), (4.0,), bandwidth=500.0),
        outcome("m", Row("pp8", prompt=8), (2.0,), (4.0,)),
        outcome("m", ROW, (2.0,), (4.0,), bandwidth=800.0),
        outcome("n", ROW, (2.0,), (4.0,)),
    ]
    assert table.limits(rows) == {"m": 800.0}
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in table.cut(rows)[2:]]
    assert [c[0] for c in cells] == ["m", "", "", "n"]
    assert [c[6] for c in cells] == ["50%", "", "50%", ""]
    assert [c[4] for c in cells] == ["2.00"] * 4


def test_page_names_machine_settings_and_failures_and_its_record_holds_every_sample() -> None:
    about = table.Machine("2026-01-01", "P", 4, 2, "abc", "S")
    broken = outcome("m", ROW, (), (4.0, 6.0), failures={table.PEER: "ended by SIGSEGV"})
    wrong = outcome("m", ROW, (1.0,), (), failures={table.OURS: "RequestError: no"})
    page = table.markdown(about, [broken, wrong], ["a note", "a note"], "python x")
    assert "| crashed | 5.0 ± 1.4 |" in page and "| 1.0 | failed |" in page
    for part in (
        "P, 4 cores, 2 threads; S",
        "2026-01-01, commit abc, `python x`",
        "llama.cpp ended by SIGSEGV",
    ):
        assert f"- {part}" in page or part in page
    assert page.count("- a note") == 1
    kept = json.loads(json.dumps(table.record(about, [broken, wrong], ["a note"])))
    assert kept["rows"][0]["samples"] == {table.OURS: [4.0, 6.0]}
    assert kept["rows"][0]["medians"] == {table.OURS: 5.0} and kept["rows"][0]["ratio"] is None
    assert kept["rows"][0]["bytes_per_second"] == {table.OURS: 500.0}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "processor\t: 0\nmodel name\t: A CPU  \ncpu family\t: 26\nmodel\t\t: 68\n",
            "A CPU (family 26, model 68)",
        ),
        ("Hardware\t: Board\n", "Board"),
        ("", ""),
    ],
)
def test_processor_names(text: str, name: str) -> None:
    assert table.processor(text) == name


def test_commit_says_where_files_differ(tmp_path: Path) -> None:
    assert table.commit(tmp_path / "none") == "unknown"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    try:
        subprocess.run([*git, "init", "-q"], check=True, capture_output=True)
    except OSError:
        pytest.skip("git is not installed")
    file = tmp_path / "a"
    file.write_text("1")
    subprocess.run([*git, "add", "a"], check=True)
    subprocess.run([*git, "commit", "-qm", "a"], check=True)
    clean = table.commit(tmp_path)
    assert len(clean) == 12 and int(clean, 16) >= 0
    file.write_text("2")
    assert table.commit(tmp_path) == f"{clean} with local changes"


# ---- the pipe


def test_commands_are_answered_line_by_line_and_errors_in_one_line() -> None:
    class Engine:
        def load(self, path: str, threads: int, mode: str) -> dict[str, Any]:
            return {"got": [path, threads, mode]}

        def prepare(self, row: Row) -> dict[str, Any]:
            return {"row": row.name, "tokens": row.tokens}

        def run(self) -> float:
            raise ValueError("a\n  b")

        def bandwidth(self) -> float:
            return 1.0

    lines = [
        command("load", path="p", threads=2, mode="plain"),
        command("prepare", Row("x", 3, 2, sequences=4)),
    ]
    lines += [command("run"), "no json\n", '{"do": "fly"}\n', command("bandwidth")]
    out = io.StringIO()
    serve(commands_of(Engine()), io.StringIO("".join(lines)), out)
    answers = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [a.get("value") for a in answers] == [
        {"got": ["p", 2, "plain"]}, {"row": "x", "tokens": 20}, None, None, None, 1.0,
    ]  # fmt: skip
    assert answers[2]["error"] == "ValueError: a b"
    assert "JSONDecodeError" in answers[3]["error"] and "fly" in answers[4]["error"]
    assert all(a["waited"] >= 0 and a["used"] >= 0 for a in answers)


def test_apart_no_two_are_loaded_at_once(seats: list[Seat]) -> None:
    said: list[str] = []
    pair = [seat(seats, table.PEER), seat(seats, table.OURS)]

    def hear(text: str) -> None:
        said.append(text)
        working = next(one for one in pair if f" {one.name}" in text)
        assert all(one is working or one.child is None for one in pair)

    found = measure_row("m", ROW, pair, 3, hear, apart=True)
    runs = [text.split(": ")[1].split(",")[0] for text in said if "run " in text]
    assert runs == [table.PEER, table.OURS, *[table.PEER] * 2, *[table.OURS] * 2]
    assert found.samples == {table.PEER: (8.0,) * 3, table.OURS: (8.0,) * 3}
    assert (found.failures, found.bandwidth) == ({}, 1000.0)
    assert all(one.child is None for one in pair)


def test_runs_alternate_and_a_row_tells_of_both(seats: list[Seat]) -> None:
    said: list[str] = []
    pair = [seat(seats, table.PEER), seat(seats, table.OURS, "noise", "run")]
    found = measure_row("m", ROW, pair, 3, said.append)
    runs = [text.split(": ")[1].split(",")[0] for text in said if "run " in text]
    assert runs == [table.PEER, table.OURS] * 3
    assert found.samples == {table.PEER: (8.0,) * 3, table.OURS: (8.0,) * 3}
    assert (found.failures, found.bandwidth) == ({}, 1000.0)
    assert found.facts[table.PEER]["version"] == "fake default"
    assert measure_row("m", Row("pp4", prompt=4), pair, 1, said.append).bandwidth is None


@pytest.mark.parametrize("at", ["load", "prepare", "run"])
@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("crash", "ended by SIGSEGV"),
        ("leave", "ended with status 1: no such luck"),
        ("error", "ValueError: two lines"),
    ],
)
def test_what_one_engine_suffers_is_reported_and_the_other_is_measured(
    seats: list[Seat], word: str, reason: str, at: str
) -> None:
    pair = [seat(seats, table.PEER, word, at), seat(seats, table.OURS)]
    for _ in range(2):  # the next row starts a new process
        found = measure_row("m", ROW, pair, 2, lambda text: None)
        assert found.failures == {table.PEER: reason}
        assert found.samples == {table.OURS: (8.0, 8.0)}


@pytest.mark.parametrize("at", ["load", "prepare", "run"])
def test_a_crash_takes_the_next_mode_and_is_noted(seats: list[Seat], at: str) -> None:
    peer = seat(seats, table.PEER, "crash", f"default:{at}", tuple(MODES))
    found = measure_row("m", ROW, [peer, seat(seats, table.OURS)], 3, lambda text: None)
    assert found.failures == {} and found.samples[table.PEER] == (8.0,) * 3
    assert found.facts[table.PEER]["version"] == "fake repack"
    assert peer.notes == [
        f"llama.cpp on m.gguf, tg4: {MODES['default']}: ended by SIGSEGV; measured with {MODES['repack']}"
    ]
    assert peer.modes == ("repack", "plain")


def test_modes_end_and_an_error_of_the_first_one_is_final(seats: list[Seat]) -> None:
    always = seat(seats, "a", "crash", "run", tuple(MODES))
    assert measure_row("m", ROW, [always], 1, lambda text: None).failures == {"a": "ended by SIGSEGV"}
    assert len(always.notes) == 2 and always.modes == ("plain",)
    refused = seat(seats, "b", "error", "default:load", tuple(MODES))
    assert measure_row("m", ROW, [refused], 1, lambda text: None).failures == {"b": "ValueError: two lines"}
    odd = Seat("c", Path("m.gguf"), 1, ("repack", "plain"), fake("error", "repack:load"))
    seats.append(odd)
    assert measure_row("m", ROW, [odd], 1, lambda text: None).facts["c"]["version"] == "fake plain"


def test_silence_ends_a_process() -> None:
    with Child(fake("hang", "run"), patience=1.0) as child:
        with pytest.raises(Crashed, match="ended by SIGKILL"):
            child.ask(command("run"))
        with pytest.raises(Crashed):
            child.ask(command("run"))


def test_a_failing_bandwidth_costs_the_share_and_not_the_row(seats: list[Seat]) -> None:
    ours = seat(seats, table.OURS, "error", "bandwidth")
    found = measure_row("m", ROW, [ours], 1, lambda text: None)
    assert found.bandwidth is None and found.samples and "no bandwidth: ValueError" in ours.notes[0]


def test_a_process_that_works_while_it_waits_is_noted(seats: list[Seat]) -> None:
    idle = seat(seats, "a")
    child = idle.start()
    child.waited, child.used = 10.0, 4.0
    idle.settle()
    assert idle.notes == ["a used 40% of a core while it should have waited"]
    child.waited, child.used = 10.0, 0.1
    idle.settle()
    assert len(idle.notes) == 1 and child.waited == 0


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no process can be pinned here")
def test_the_busy_process_is_pinned_to_core_0_and_ends() -> None:
    before = set(children(os.getpid()))
    try:
        with busy_core(True):
            (worker,) = set(children(os.getpid())) - before
            assert os.sched_getaffinity(worker) == {0}
    except RequestError as error:
        pytest.skip(str(error))
    assert worker not in children(os.getpid())
    with busy_core(False):
        assert not set(children(os.getpid())) - before


# ---- the script


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rows", "nope"], "--rows nope: expected"),
        (["--repeats", "0"], "--repeats 0: expected 1 or more"),
        (["--json", "no/such/folder/x.json"], "there is no folder"),
        (["--models", "none.gguf"], "--models none.gguf"),
    ],
)
def test_errors_are_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert compare.main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and err.count("\n") == 1


def test_the_missing_peer_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert compare.main([]) == 2
    assert "pip install 'satchel[bench]'" in capsys.readouterr().err


def test_an_interruption_keeps_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def measure(subject: Any, name: str, seats: Any, repeats: int, found: compare.Found, *more: Any) -> None:
        found.outcomes.append(outcome(name, ROW, (1.0,), (2.0,)))
        raise KeyboardInterrupt

    (tmp_path / "x.gguf").touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(compare, "measure", measure)
    assert compare.main(["--models", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "| x | tg4 | 1.0 | 2.0 | 2.00 |" in out and "interrupted" in out
