"""Downloads from misbehaving servers: never a wrong file, never a hang, and received bytes are kept."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hub_server import QUICK, Hub, Served, rushing_clock, sha
from hypothesis import given
from hypothesis import strategies as st
from waiting import SECONDS, until

from satchel.errors import RequestError
from satchel.store.download import download, journal_of
from satchel.store.journal import ByteRanges, Identity, Journal, read_journal
from satchel.store.remote import Remote
from satchel.store.web import Web

DATA = b"GGUF" + random.Random(7).randbytes(60_000)
OTHER = b"GGUF" + random.Random(8).randbytes(60_000)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "a.gguf"


def get(hub: Hub, target: Path, *, sha256: str = "", size: int | None = None, **pace: float) -> str:
    web = Web([hub.url], timeout=QUICK.patience)
    remote = Remote(f"{hub.url}/a", "a.gguf", size, sha256)
    return download(web, remote, target, replace(QUICK, **pace)).sha256  # type: ignore[arg-type]


def asked(hub: Hub) -> int:
    """Bytes requested by ranges."""
    ranges = (h.get("range", "bytes=0-0")[6:].split("-") for _, h in hub.asked)
    return sum(int(last) - int(first) + 1 for first, last in ranges)


def part_of(hub: Hub, target: Path, sha256: str = "") -> None:
    """A download that was interrupted after 20,000 bytes."""
    hub.files["/a"] = Served(DATA, cut=20_000, step=1000)
    with pytest.raises(RequestError, match=r"bytes are kept, pull again to go on"):
        get(hub, target, sha256=sha256, tries=1, piece=1 << 20, block=1 << 20)
    assert journal_of(target).exists()
    hub.asked.clear()


def test_it_is_fetched_in_parts(hub: Hub, target: Path) -> None:
    hub.files["/a"] = Served(DATA)
    assert get(hub, target, sha256=sha(DATA)) == sha(DATA) and target.read_bytes() == DATA
    assert len(hub.asked) == 1 + -(-len(DATA) // QUICK.piece)


def test_a_line_that_breaks_is_taken_up_again(hub: Hub, target: Path) -> None:
    hub.files["/a"] = Served(DATA, cut=3000, step=500)
    assert get(hub, target, piece=1 << 20) == sha(DATA)


def test_what_came_is_not_fetched_twice(hub: Hub, target: Path) -> None:
    part_of(hub, target)
    hub.files["/a"] = Served(DATA)
    assert get(hub, target, sha256="") == sha(DATA) and target.read_bytes() == DATA
    assert asked(hub) <= len(DATA) - 19_000


@pytest.mark.parametrize("etag", ['"other"', ""])
def test_another_version_starts_again(hub: Hub, target: Path, etag: str) -> None:
    part_of(hub, target)
    hub.files["/a"] = Served(OTHER, etag=etag)
    assert get(hub, target) == sha(OTHER) and target.read_bytes() == OTHER
    assert asked(hub) >= len(OTHER)


def test_a_version_that_comes_in_the_middle_starts_again(hub: Hub, target: Path) -> None:
    hub.files["/a"] = Served(DATA)
    hub.before = lambda path: hub.files.update({"/a": Served(OTHER if len(hub.asked) > 4 else DATA)})
    assert get(hub, target, workers=1) == sha(OTHER) and target.read_bytes() == OTHER


def test_a_version_that_never_lasts_is_given_up(hub: Hub, target: Path) -> None:
    hub.files["/a"] = Served(DATA)
    hub.before = lambda path: hub.files.update({"/a": Served(DATA, etag=f'"{len(hub.asked)}"')})
    with pytest.raises(RequestError, match=r"ETag: expected .*, and again after 2 restarts"):
        get(hub, target)
    assert not target.exists()


def test_a_part_that_was_spoilt_on_the_disk_is_fetched_anew(hub: Hub, target: Path) -> None:
    part_of(hub, target, sha(DATA))
    with target.open("r+b") as file:
        file.write(b"GGUFspoilt")
    hub.files["/a"] = Served(DATA)
    assert get(hub, target, sha256=sha(DATA)) == sha(DATA)


@pytest.mark.parametrize(
    ("served", "size", "message"),
    [
        pytest.param(Served(DATA, ranges=False, length=70_000), None, "connection failed", id="long"),
        pytest.param(Served(DATA, ranges=False), 50_000, "size: expected 50000 bytes", id="size"),
        pytest.param(
            Served(DATA, said="bytes {first}-{last}/70004"), 60_004, "the server has 70004", id="total"
        ),
        pytest.param(Served(DATA, said="bytes 0-0/60004"), None, "sends those from 0", id="other-part"),
        pytest.param(Served(DATA, said="pieces"), None, "expected Content-Range", id="no-range"),
        pytest.param(Served(DATA, cut=0), None, "connection failed|ended", id="nothing"),
        pytest.param(Served(b""), None, "empty file", id="empty"),
        pytest.param(Served(status=500), None, "the server says 500; try again later", id="500"),
        pytest.param(Served(status=403), None, "private, gated, or not there", id="403"),
        pytest.param(Served(DATA, ranges=False, length=-1), None, "connection failed", id="bad-length"),
        pytest.param(
            Served(status=429, headers={"Retry-After": "9999"}), None, "asks for 9999 s", id="retry-after"
        ),
        pytest.param(Served(b"<!DOCTYPE html>" * 99), None, "got a web page", id="page"),
        pytest.param(Served(b"PK\3\4" + bytes(99)), None, "zip archive or PyTorch file", id="torch"),
    ],
)
def test_what_does_not_add_up_is_an_error(
    served: Served, size: int | None, message: str, hub: Hub, target: Path
) -> None:
    hub.files["/a"] = served
    with pytest.raises(Exception, match=message) as error:
        get(hub, target, size=size)
    assert type(error.value).__name__ in ("RequestError", "ModelError", "Refused")
    assert "\n" not in str(error.value)


def test_a_server_that_knows_no_parts(hub: Hub, target: Path) -> None:
    hub.files["/a"] = Served(DATA, ranges=False)
    assert get(hub, target, sha256=sha(DATA)) == sha(DATA) and len(hub.asked) == 2


def test_a_server_that_forgets_parts_in_the_middle(hub: Hub, target: Path) -> None:
    hub.files["/a"] = Served(DATA)
    hub.before = lambda path: hub.files.update({"/a": Served(DATA, ranges=len(hub.asked) < 3)})
    with pytest.raises(RequestError, match=r"expected a part of the file \(206\), the server says 200"):
        get(hub, target)


def test_a_wrong_digest_leaves_nothing(hub: Hub, target: Path) -> None:
    hub.files["/a"] = Served(DATA)
    with pytest.raises(RequestError, match=r"sha256: expected 0000.*nothing was kept"):
        get(hub, target, sha256="0" * 64)
    assert not target.exists() and not journal_of(target).exists()


def test_a_slow_drip_is_dropped(hub: Hub, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rushing_clock(monkeypatch)
    hub.files["/a"] = Served(DATA, cut=500)
    with pytest.raises(RequestError, match=r"only \d+ bytes came in \d+ s; \d+ bytes are kept"):
        get(hub, target, tries=2)


def test_silence_is_dropped(hub: Hub, target: Path) -> None:
    hub.files["/a"] = Served(DATA)
    over = threading.Event()
    hub.before = lambda path: over.wait(SECONDS) if len(hub.asked) > 1 else None
    web = Web([hub.url], timeout=0.5)
    try:
        with pytest.raises(RequestError, match=r"nothing came for 0.5 s"):
            download(web, Remote(f"{hub.url}/a", "a.gguf"), target, replace(QUICK, tries=2))
    finally:
        over.set()


def test_a_caller_that_leaves_can_go_on(hub: Hub, target: Path) -> None:
    held = hub.files["/a"] = Served(DATA, step=500, free=45_000)

    def leave(progress: object) -> None:
        if progress.done > 20_000:  # type: ignore[attr-defined]
            held.go.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(Web([hub.url]), Remote(f"{hub.url}/a", "a.gguf"), target, QUICK, leave)
    hub.asked.clear()
    hub.files["/a"] = Served(DATA)
    assert get(hub, target) == sha(DATA) and asked(hub) < len(DATA) - 15_000


SCRIPT = """
import sys
from pathlib import Path
from satchel.store.download import download
from satchel.store.remote import Pace, Remote
from satchel.store.web import Web
url, target = sys.argv[1:]
pace = Pace(workers=3, piece=1 << 12, block=1 << 10)
download(Web([url]), Remote(url, "a.gguf"), Path(target), pace)
"""


@pytest.mark.parametrize("after", [10_000, 40_000])
def test_kill_9_in_the_middle_goes_on(hub: Hub, target: Path, after: int) -> None:
    held = hub.files["/a"] = Served(DATA, step=256, free=after + 15_000)
    child = subprocess.Popen([sys.executable, *python_flags(), "-c", SCRIPT, f"{hub.url}/a", str(target)])

    def well_begun() -> bool:
        assert child.poll() is None
        known = read_journal(journal_of(target))
        return known is not None and known[1].total >= after

    until(well_begun, f"{after} bytes are kept")
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    held.go.set()
    hub.finish_all()
    hub.asked.clear()
    hub.files["/a"] = Served(DATA)
    assert get(hub, target) == sha(DATA) and target.read_bytes() == DATA
    assert asked(hub) <= len(DATA) - after + 1


def python_flags() -> list[str]:
    return ["-S"] if sys.flags.no_site else []


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60))), st.integers(1, 70), st.integers(1, 9))
def test_spans_are_a_set_of_bytes(added: list[tuple[int, int]], size: int, piece: int) -> None:
    spans, known = ByteRanges(), set[int]()
    for start, end in added:
        spans.add(start, end)
        known |= set(range(start, end))
    assert spans.total == len(known)
    assert spans.front == next(i for i in range(99) if i not in known)
    gaps = list(spans.gaps(size, piece))
    assert [b for start, end in gaps for b in range(start, end)] == sorted(set(range(size)) - known)
    assert all(0 < end - start <= piece for start, end in gaps)


@given(st.binary(max_size=40), st.integers(0, 200))
def test_a_torn_journal_says_only_what_is_true(tail: bytes, cut: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path, identity = Path(folder) / "j", Identity("u", 100, "e", "")
        journal = Journal(path, identity)
        journal.add(0, 10)
        journal.add(50, 60)
        journal.close()
        whole = path.read_bytes()
        path.write_bytes(whole[: max(0, len(whole) - cut)])
        again = Journal(path, identity)
        assert again.spans.total in (0, 10, 20) and again.spans.front in (0, 10)
        again.add(70, 80)
        again.close()
        found = read_journal(path)
        assert found is not None and found[1].total == again.spans.total
        path.write_bytes(whole + tail)
        found = read_journal(path)
        assert found is not None and found[1].total >= 20


def test_what_is_added_after_a_damaged_line_is_read(tmp_path: Path) -> None:
    path, identity = tmp_path / "j", Identity("u", 100, "e", "")
    Journal(path, identity).close()
    path.write_bytes(path.read_bytes() + b"0 10\n00 damaged\n20 30\n")
    again = Journal(path, identity)
    again.add(40, 50)
    again.close()
    found = read_journal(path)
    assert found is not None and found[1].total == 20


@pytest.mark.parametrize(
    "fields",
    ['"size": "100"', '"size": 0', '"size": -1', '"size": 1e3', '"size": true', '"size": 1, "url": 3'],
)
def test_a_journal_of_other_types_is_none(fields: str, tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_text(f'{{"url": "u", "etag": "e", "sha256": "", {fields}}}\n0 10\n')
    assert read_journal(path) is None
