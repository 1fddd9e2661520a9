"""Damaged and hostile model files: the C library refuses each by one line or runs it, under the address and
undefined-behaviour sanitizers, and never dies.
"""

from __future__ import annotations

import random
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import embedded
import pytest
from embedded import Driver, DriverError, WordsDriver
from tiny_file import write_model
from toy_tokenizers import TOYS, toy

from satchel.formats.gguf import open_gguf, write_gguf
from satchel.formats.gguf.edit import change, parse_assignment, write_edited
from satchel.formats.gguf.splice import HeaderBytes
from satchel.runtime.aot.build import build
from satchel.runtime.aot.records import KEYS, PLAN_HEAD, PLAN_KEY, TOKENIZER_HEAD

VALUES = (0, 1, 2, 3, 7, 8, 63, 64, 65, 255, 1 << 16, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)


@pytest.fixture
def driver(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setenv("ASAN_OPTIONS", embedded.ASAN_OPTIONS)
    with Driver(embedded.driver_program(tmp_path_factory, sanitized=True)) as made:
        yield made


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    path = write_model(folder / "m.gguf", "gemma2", gemma2__attention__sliding_window=20)
    with open_gguf(path) as gguf:
        build(gguf, folder / "app.gguf")
    return folder / "app.gguf"


def sections(path: Path) -> dict[str, tuple[int, int]]:
    """Place of each section's bytes in the file, and their number."""
    raw, found = path.read_bytes(), {}
    for key, magic in zip(KEYS, (b"SATPLAN2", b"SATTOK02", b"SATTPL01"), strict=True):
        at = raw.index(magic)
        found[key] = at, struct.unpack_from("<I", raw, at + 8)[0]
    return found


def tried(driver: Driver, path: Path) -> str:
    """The error of opening and running a file; "" where it runs."""
    try:
        driver.open(path, 0, 2)
    except DriverError as error:
        assert error.code < 0
        assert 0 < len(error.text) < 500
        return error.text
    try:
        driver.tokenize("hello  hello's 12 x\n\n<tool>")
        driver.chat({"messages": [{"role": "user", "content": "hello <tool>"}]})
        driver.begin(0, [1, 2, 3, *range(40)], {"seed": 1, "flags": 1})
        driver.next(0, 3)
        driver.end(0)
    except DriverError as error:
        driver.end(0)
        driver.close()
        return error.text
    driver.close()
    return ""


def mutated(rng: random.Random, raw: bytes) -> bytes:
    """A section with a few numbers changed, most of them in its head, and a right checksum."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 4))):
        most = 96 if rng.random() < 0.4 else len(data)
        at = 16 + rng.randrange((most - 16) // 4) * 4
        kind = rng.randrange(4)
        if kind == 0:
            struct.pack_into("<I", data, at, rng.choice(VALUES))
        elif kind == 1:
            data[at + rng.randrange(4)] ^= 1 << rng.randrange(8)
        elif kind == 2:
            number = struct.unpack_from("<I", data, at)[0] + rng.choice((-1, 1, 8, -8))
            struct.pack_into("<I", data, at, number % (1 << 32))
        else:
            data[at + rng.randrange(4)] = rng.randrange(256)
    struct.pack_into("<I", data, 12, zlib.crc32(data[16:]))
    return bytes(data)


def mutate_sections(driver: Driver, app: Path, copy: Path, count: int, seed: int) -> tuple[int, int]:
    """How many mutated sections were refused, and how many ran."""
    shutil.copyfile(app, copy)
    rng, places, raw = random.Random(seed), sections(app), app.read_bytes()
    refused = 0
    with copy.open("r+b") as file:
        for _ in range(count):
            at, size = places[rng.choice(KEYS)]
            file.seek(at)
            file.write(mutated(rng, raw[at : at + size]))
            file.flush()
            refused += bool(tried(driver, copy))
            file.seek(at)
            file.write(raw[at : at + size])
            file.flush()
        assert tried(driver, copy) == ""
    return refused, count - refused


def test_some_mutated_sections(driver: Driver, app: Path, tmp_path: Path) -> None:
    refused, ran = mutate_sections(driver, app, tmp_path / "m.gguf", 250, seed=0)
    assert refused > 50  # most of the rest change a number that is none of the structure's
    assert ran > 12


@pytest.mark.nightly
def test_a_hundred_thousand_mutated_sections(driver: Driver, app: Path, tmp_path: Path) -> None:
    refused, ran = mutate_sections(driver, app, tmp_path / "m.gguf", 100_000, seed=1)
    assert min(refused, ran) > 5000


def tokenizer_file(name: str, folder: Path) -> tuple[bytes, int, int]:
    """A built file of a toy vocabulary, and where its tokenizer section begins and ends."""
    write_gguf(folder / "words.gguf", {"general.architecture": "llama"} | toy(name), [])
    embedded.build_words(folder / "words.gguf", folder / "app.gguf")
    raw = (folder / "app.gguf").read_bytes()
    at = raw.index(b"SATTOK02")
    return raw, at, at + struct.unpack_from("<I", raw, at + 8)[0]


def mutate_tokenizers(driver: WordsDriver, folder: Path, count: int, seed: int) -> tuple[int, int]:
    """How many mutated tokenizers of all kinds were refused, and how many ran."""
    rng, refused = random.Random(seed), 0
    texts = ["hello  hello's 12 x\n\n<tool>Ａ①ﬁ é\u302e\u1dfa ▁aaaaaaa 漢한 \x00", "ab" * 500]
    for name in TOYS:
        raw, at, end = tokenizer_file(name, folder)
        for _ in range(count):
            made = mutated(rng, raw[at:end])
            (folder / "mutated.gguf").write_bytes(raw[:at] + made + raw[end:])
            try:
                driver.open(folder / "mutated.gguf")
                for text in texts:
                    ids = driver.tokenize(text, 1)
                    driver.detokenize(ids)
                    driver.answer(ids, ["2 x", "aab"], ("<tool>", "hell"))
            except DriverError as error:
                assert error.code < 0 and error.text
                refused += 1
    return refused, count * len(TOYS) - refused


@pytest.fixture
def words_driver(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[WordsDriver]:
    monkeypatch.setenv("ASAN_OPTIONS", embedded.ASAN_OPTIONS)
    with WordsDriver(embedded.words_program(tmp_path_factory)) as made:
        yield made


def test_mutated_tokenizers_of_every_kind(words_driver: WordsDriver, tmp_path: Path) -> None:
    refused, ran = mutate_tokenizers(words_driver, tmp_path, 25, seed=3)
    assert min(refused, ran) > 50


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_special_token_that_ends_within_a_character_is_refused(
    name: str, words_driver: WordsDriver, tmp_path: Path
) -> None:
    """A text that is cut at it would leave a part of a character."""
    raw, at, end = tokenizer_file(name, tmp_path)
    data = bytearray(raw[at:end].replace(b"<tool>", b"<tool\xc3"))
    assert data != raw[at:end]
    struct.pack_into("<I", data, 12, zlib.crc32(data[16:]))
    (tmp_path / "mutated.gguf").write_bytes(raw[:at] + data + raw[end:])
    with pytest.raises(DriverError, match="a special token is no UTF-8"):
        words_driver.open(tmp_path / "mutated.gguf")


@pytest.mark.nightly
def test_many_mutated_tokenizers_of_every_kind(words_driver: WordsDriver, tmp_path: Path) -> None:
    refused, ran = mutate_tokenizers(words_driver, tmp_path, 5000, seed=4)
    assert min(refused, ran) > 5000


def test_mutated_headers(driver: Driver, app: Path, tmp_path: Path) -> None:
    copy, rng = tmp_path / "m.gguf", random.Random(2)
    shutil.copyfile(app, copy)
    with open_gguf(app) as gguf:
        header = gguf.parts[0].data_offset
    raw = app.read_bytes()[:header].rstrip(b"\0")  # what fills up to the data says nothing
    sections_at = sorted(sections(app).values())
    plain = [i for i in range(len(raw)) if not any(at <= i < at + size for at, size in sections_at)]
    with copy.open("r+b") as file:
        for _ in range(200):
            at = rng.choice(plain[:200] if rng.random() < 0.3 else plain)
            file.seek(at)
            file.write(bytes([raw[at] ^ 1 << rng.randrange(8)]))
            file.flush()
            assert tried(driver, copy)  # the plan's checksum covers every key, and the tensor list
            file.seek(at)
            file.write(raw[at : at + 1])
            file.flush()


def damaged(rng: random.Random, raw: bytes, header: int) -> bytes:
    """A whole file, damaged as copies and disks do it: bits, numbers, ranges that are lost, doubled or moved,
    a missing end. Half of the damage is in the header, which has `header` bytes.
    """
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 8))):
        most = header if rng.random() < 0.5 else len(data)
        at = rng.randrange(max(1, min(most, len(data)) - 16))
        other, size = rng.randrange(max(1, len(data) - 16)), rng.choice((1, 4, 8, 64, 4096))
        kind = rng.randrange(6)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            struct.pack_into("<I", data, at, rng.choice(VALUES))
        elif kind == 2:
            data[at : at + size] = bytes(min(size, len(data) - at))
        elif kind == 3:
            piece = data[other : other + size]
            data[at : at + len(piece)] = piece
        elif kind == 4:
            del data[at : at + size]
        elif rng.random() < 0.2:
            del data[max(16, at) :]
        if len(data) < 64:
            break
    return bytes(data)


def damage_files(driver: Driver, app: Path, copy: Path, count: int, seed: int) -> tuple[int, int]:
    """How many damaged files were refused, and how many ran."""
    rng, raw, refused = random.Random(seed), app.read_bytes(), 0
    with open_gguf(app) as gguf:
        header = gguf.parts[0].data_offset
    for _ in range(count):
        copy.write_bytes(damaged(rng, raw, header))
        refused += bool(tried(driver, copy))
    copy.write_bytes(raw)
    assert tried(driver, copy) == ""
    return refused, count - refused


def test_some_damaged_files(driver: Driver, app: Path, tmp_path: Path) -> None:
    refused, ran = damage_files(driver, app, tmp_path / "m.gguf", 125, seed=5)
    assert refused > 50
    assert ran > 5  # numbers of weights alone


@pytest.mark.nightly
def test_a_hundred_thousand_damaged_files(driver: Driver, app: Path, tmp_path: Path) -> None:
    refused, ran = damage_files(driver, app, tmp_path / "m.gguf", 100_000, seed=6)
    assert min(refused, ran) > 5000


def test_files_cut_short(driver: Driver, app: Path, tmp_path: Path) -> None:
    raw, copy = app.read_bytes(), tmp_path / "m.gguf"
    for size in (0, 3, 23, 24, 100, 5000, len(raw) // 2, len(raw) - 100):
        copy.write_bytes(raw[:size])
        assert tried(driver, copy)


def test_errors_say_what_to_do(driver: Driver, app: Path, tmp_path: Path) -> None:
    missing = tmp_path / "no.gguf"
    assert "no.gguf: can't be read: No such file" in tried(driver, missing)
    assert "expected a GGUF file, got 0 bytes of something else" in tried(driver, tmp_path)
    unbuilt = write_model(tmp_path / "m.gguf")
    assert "run `satchel build" in tried(driver, unbuilt)
    edited = tmp_path / "edited.gguf"
    with open_gguf(app) as gguf:
        key = parse_assignment("gemma2.attn_logit_softcapping=9.5", gguf.metadata)
        write_edited(gguf, change(gguf.metadata, sets=[key]), edited)
    assert "the file was edited since; build the file again" in tried(driver, edited)
    with pytest.raises(DriverError, match="context: expected 21 to 96 for this file, got 97"):
        driver.open(app, 97, 1)
    with pytest.raises(DriverError, match="slots: expected 1 to 64, got 65"):
        driver.open(app, 96, 65)
    driver.open(app, 96, 1)
    with pytest.raises(DriverError, match="temperature: expected a number from 0 to 100, got -1"):
        driver.begin(0, [1], {"temperature": -1})
    with pytest.raises(DriverError, match="token id: expected 0 to 287, got 288"):
        driver.begin(0, [288], {})
    with pytest.raises(DriverError, match="samplers: expected letters of edskypmxt, each once, got zt"):
        driver.begin(0, [1], {"samplers": "zt"})
    with pytest.raises(DriverError, match="expected UTF-8, got another byte at 2"):
        driver.tokenize(b"ab\xff")


def test_another_version_is_refused_by_name(driver: Driver, app: Path, tmp_path: Path) -> None:
    copy = tmp_path / "m.gguf"
    raw = bytearray(app.read_bytes())
    at, size = sections(app)[PLAN_KEY]
    raw[at + PLAN_HEAD.fields["hal"][1]] ^= 1  # type: ignore[index]
    struct.pack_into("<I", raw, at + 12, zlib.crc32(raw[at + 16 : at + size]))
    copy.write_bytes(raw)
    assert "another version of Satchel" in tried(driver, copy)


def test_the_checksum_of_the_header_is_the_builders(app: Path) -> None:
    with open_gguf(app) as gguf:
        at, _ = sections(app)[PLAN_KEY]
        told = struct.unpack_from("<I", app.read_bytes(), at + PLAN_HEAD.fields["file_crc"][1])[0]  # type: ignore[index]
        assert HeaderBytes(gguf).checksum(KEYS) == told
    assert PLAN_HEAD.itemsize % 8 == TOKENIZER_HEAD.itemsize % 8 == 0
