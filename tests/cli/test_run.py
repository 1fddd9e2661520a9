"""`satchel run`: stdout, stderr, exit codes, and the library's arguments."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_model import FakeModel
from tiny_file import write_model

from satchel.cli.chat.respond import CONTEXTS
from satchel.cli.chat.start import ChatStart
from satchel.cli.main import CLOSED, main
from satchel.cli.once import PATIENCE
from satchel.cli.options import typed
from satchel.runtime.api.defaults import RequestDefaults
from satchel.runtime.sampling import Sampling

Run = Callable[..., tuple[int, str, str]]


def cache(keys: str, values: str) -> dict[str, str]:
    """The cache formats as arguments of Model.load."""
    return {"cache_type_k": keys, "cache_type_v": values}


def set_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8"))


@pytest.fixture
def fake() -> FakeModel:
    return FakeModel()


@pytest.fixture
def run(fake: FakeModel, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setattr("satchel.runtime.api.model.Model.load", fake.load)
    for name in [n for n in os.environ if n.startswith(("SATCHEL_", "LLAMA_ARG_"))]:
        monkeypatch.delenv(name)

    def call(*args: str, stdin: bytes = b"") -> tuple[int, str, str]:
        set_stdin(monkeypatch, stdin)
        code = main(["run", "-m", "some.gguf", *args])
        return code, *capfd.readouterr()

    return call


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_the_answer_alone_is_on_stdout(run: Run, fake: FakeModel) -> None:
    fake.notes.append("the file is odd")
    assert run("Who are you?") == (0, "Hello!\n", "satchel: note: the file is odd\n")
    assert fake.conversations[-1] == [{"role": "user", "content": "Who are you?"}] and len(fake.asked) == 1
    assert fake.closed


@pytest.mark.parametrize(
    ("script", "shown"), [(["a", "b\n"], "ab\n"), (["a"], "a\n"), ([], ""), (["\x1b[2J"], "\x1b[2J\n")]
)
def test_stdout_ends_with_a_line_end(run: Run, fake: FakeModel, script: list[str], shown: str) -> None:
    fake.scripts.append(script)
    assert run("hi")[:2] == (0, shown)


@pytest.mark.parametrize(
    ("args", "stdin", "prompt"),
    [
        (["ask"], b"", "ask"),
        ([], b"piped\n", "piped"),
        (["ask"], b"piped\r\n", "piped\nask"),
        (["ask"], "é\n日本\n\n".encode(), "é\n日本\n\nask"),
        (["-p", r"a\nb"], b"", "a\nb"),
        (["-p", r"a\nb", "--no-escape"], b"", r"a\nb"),
        ([r"C:\new"], b"", r"C:\new"),
        ([r"a\tb", "-e"], b"", "a\tb"),
        (["--", "-hf"], b"", "-hf"),
    ],
)
def test_where_the_prompt_comes_from(
    run: Run, fake: FakeModel, args: list[str], stdin: bytes, prompt: str
) -> None:
    assert run(*args, stdin=stdin)[0] == 0
    assert fake.conversations[0][-1]["content"] == prompt


def test_prompt_and_system_prompt_from_files(run: Run, fake: FakeModel, tmp_path: Path) -> None:
    (tmp_path / "p").write_text("what?\n\n", encoding="utf-8")
    (tmp_path / "s").write_text("Be kind.\n", encoding="utf-8")
    assert run("-f", str(tmp_path / "p"), "-sysf", str(tmp_path / "s"))[0] == 0
    assert [m["content"] for m in fake.conversations[0]] == ["Be kind.", "what?\n"]


def test_a_flag_goes_before_the_file_and_the_file_before_the_default(run: Run, fake: FakeModel) -> None:
    fake.request_defaults = RequestDefaults(Sampling(temperature=0.25, top_k=7))
    assert run("--top-k", "40", "hi")[0] == 0
    drawn = fake.asked[0]["sampling"]
    assert (drawn.temperature, drawn.top_k, drawn.top_p) == (0.25, 40, Sampling().top_p)


def test_raw_completion_has_no_template(run: Run, fake: FakeModel) -> None:
    assert run("-no-cnv", "Once upon")[0] == 0
    assert (fake.raw, fake.conversations) == (["Once upon"], [])


def test_options_reach_the_library(run: Run, fake: FakeModel) -> None:
    args = (
        "-c 128 -t 3 -b 64 -ub 256 -ctk f16 --cache_type_v f32 -ngl 0 --device none -n 9 -s 7 --temp 0.5 "
        "--top-k 3 --top_p 0.7 --min-p 0.1 --repeat-last-n -1 --repeat-penalty 1.1 --presence-penalty 0.2 "
        "--frequency-penalty 0.3 --ignore-eos -r END -r two\\nlines -st --jinja hi"
    )
    assert run(*args.split())[0] == 0
    load = {k: fake.loaded[k] for k in ("context", "threads", "batch", "device", *cache("", ""))}
    assert load == {"context": 128, "threads": 3, "batch": 64, "device": "cpu", **cache("f16", "f32")}
    asked = fake.asked[0]
    assert (asked["max_tokens"], asked["ignore_eos"], asked["stop"]) == (9, True, ("END", "two\nlines"))
    s = asked["sampling"]
    assert (s.seed, s.temperature, s.top_k, s.top_p, s.min_p) == (7, 0.5, 3, 0.7, 0.1)
    penalties = (s.repeat_last_n, s.repeat_penalty, s.presence_penalty, s.frequency_penalty)
    assert penalties == (-1, 1.1, 0.2, 0.3)


def test_defaults_are_those_of_llama_cpp(run: Run, fake: FakeModel) -> None:
    assert run("hi")[0] == 0
    load = {k: fake.loaded[k] for k in ("context", "threads", "batch", "device", *cache("", ""))}
    assert load == {"context": 0, "threads": 0, "batch": 0, "device": "auto", **cache("", "")}
    assert fake.loaded["cache_type"] == "f16"
    asked = fake.asked[0]
    assert (asked["ignore_eos"], asked["stop"]) == (False, ())
    assert asked["max_tokens"] == CONTEXTS * fake.context, "a context shift must not go on for ever"
    s = asked["sampling"]
    assert (s.seed, s.temperature, s.top_k, s.top_p, s.min_p, s.repeat_last_n) == (
        None,
        0.8,
        40,
        0.95,
        0.05,
        64,
    )


@pytest.mark.parametrize(
    ("args", "loaded"),
    [
        ([], {"threads": 0, "threads_batch": 0, "repack": True, "precision": "exact"}),
        (["-t", "2", "-tb", "5"], {"threads": 2, "threads_batch": 5}),
        (["--threads-batch", "-1"], {"threads": 0, "threads_batch": 0}),
        (["--no-repack", "--precision", "fast"], {"repack": False, "precision": "fast"}),
        (["-nr"], {"repack": False}),
        (["--no_repack", "--repack"], {"repack": True}),
        ([], {"host_cache": 0}),
        (["-cram", "3"], {"host_cache": 3 << 20}),
        (["--cache-ram", "-1"], {"host_cache": 1 << 62}),
    ],
)
def test_how_weights_are_kept_and_threads_shared(
    run: Run, fake: FakeModel, args: list[str], loaded: dict[str, object]
) -> None:
    assert run(*args, "hi")[0] == 0
    assert {k: fake.loaded[k] for k in loaded} == loaded


def test_environment_and_who_wins(run: Run, fake: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "100")
    monkeypatch.setenv("SATCHEL_CTX_SIZE", "200")
    monkeypatch.setenv("LLAMA_ARG_THREADS", "5")
    monkeypatch.setenv("LLAMA_ARG_CACHE_RAM", "7")
    assert run("hi", "-t", "6")[0] == 0
    assert (fake.loaded["context"], fake.loaded["threads"]) == (200, 6)
    assert fake.loaded["host_cache"] == 7 << 20


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "prompt: none given"),
        ([" \n"], "prompt: none given"),
        (["hi", "-p", "x"], "given by -p already"),
        (["hi", "-f", "none", "-p", "x"], "given by -p already"),
        (["-sys", "x", "-sysf", "y", "hi"], "given by -sys already"),
        (["-no-cnv", "-sys", "x", "hi"], "no place for a system prompt"),
        (["-ngl", "many", "hi"], "gpu_layers is 'many': expected auto, all or a number"),
        (["-dev", "cpu,cpu", "hi"], "device 'cpu,cpu': expected auto, or different names"),
        (["-ctk", "q5_0", "hi"], "cache_type_k is 'q5_0': expected one of f16, bf16, f32, q8_0, fp8, q4_0"),
        (["-ctv", "q6_k", "hi"], "-ctv: cache_type_v is 'q6_k': expected"),
        (["-c", "-1", "hi"], "-c: context is -1: expected 0 or more"),
        (["-t", "-2", "hi"], "-t: threads is -2: expected 0 or more"),
        (["-tb", "-2", "hi"], "-tb: threads_batch is -2"),
        (["--precision", "half", "hi"], "--precision: precision is 'half': expected one of exact, fast"),
        (["-n", "-3", "hi"], "-n"),
        (["--temp", "-1", "hi"], "temperature is -1.0: expected 0 to 100"),
        (["--temp", "nan", "hi"], "temperature is nan"),
        (["--top-p", "1.01", "hi"], "top_p is 1.01"),
        (["-s", "-2", "hi"], "seed is -2"),
        (["-s", str(2**64), "hi"], "seed is"),
        (["-r", "", "hi"], "-r: an empty text"),
        (["-p", r"\xff"], "-p: expected UTF-8 text, got byte 0xff at 0"),
        (["a\udcffb"], "prompt: expected UTF-8 text, got byte 0xff at 1"),
        (["--tmep", "1", "hi"], "no such option: --tmep; did you mean --temp?"),
        (["one", "two"], "expected one text, got 2"),
    ],
)
def test_wrong_use(run: Run, fake: FakeModel, args: list[str], said: str) -> None:
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert said in err and err.count("\n") == 1
    assert not fake.asked


def test_a_model_file_is_no_prompt(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"")
    code, _, err = run(str(tmp_path / "x.gguf"))
    assert code == 2 and "a model is given by -m" in err


@pytest.mark.parametrize("data", [b"\xff", b"ok \xe2\x82"])
def test_stdin_must_be_text(run: Run, data: bytes) -> None:
    code, out, err = run(stdin=data)
    assert (code, out) == (1, "") and "stdin: expected UTF-8 text" in err


def test_what_the_library_refuses_is_one_line(run: Run, fake: FakeModel) -> None:
    fake.context = 3
    code, out, err = run("one two three four")
    assert (code, out, err) == (1, "", "satchel: error: the prompt has 4 tokens, the context holds 3\n")
    assert fake.closed


def test_a_full_context_is_told(run: Run, fake: FakeModel) -> None:
    fake.context = 3
    fake.scripts.append(["a"] * 9)
    code, out, err = run("hi there", "--no-context-shift")
    assert (code, out) == (0, "aa\n") and "the context of 3 tokens is full" in err


def test_json(run: Run, fake: FakeModel) -> None:
    fake.scripts.append(['"é"\n', "b"])
    code, out, err = run("--json", "-s", "5", "one two")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["text"], found["seed"], found["finish_reason"]) == ('"é"\nb', 5, "stop")
    assert (found["prompt_tokens"], found["generated_tokens"]) == (2, 2)
    assert found["decode_tokens_per_second"] == 2.0 and found["load_seconds"] >= 0


def test_verbose_prints_timings_on_stderr(run: Run) -> None:
    code, out, err = run("-v", "hi")
    assert (code, out) == (0, "Hello!\n")
    names = [
        "total duration",
        "load duration",
        "prompt eval count",
        "prompt eval duration",
        "prompt eval rate",
    ]
    names += ["eval count", "eval duration", "eval rate"]
    assert [line.partition(":")[0] for line in err.splitlines()] == names


def test_ctrl_c_ends_the_answer(run: Run, fake: FakeModel) -> None:
    fake.scripts.append(["so ", interrupt, "far ", "never"])
    code, out, _ = run("hi")
    assert (code, out) == (130, "so \n")
    assert fake.closed


def test_the_second_ctrl_c_does_not_wait(run: Run, fake: FakeModel) -> None:
    fake.scripts.append(["so ", interrupt, interrupt, pytest.fail])
    assert run("hi")[:2] == (130, "so \n")


def test_ctrl_c_while_a_long_prompt_is_read(run: Run, fake: FakeModel) -> None:
    fake.while_reading.append(interrupt)
    fake.scripts.append([pytest.fail])
    assert run("word " * 1500) == (130, "", "")


def test_ctrl_c_is_as_before_afterwards(run: Run, fake: FakeModel) -> None:
    before = signal.getsignal(signal.SIGINT)
    fake.scripts.append([interrupt])
    run("hi")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (r"\n\r\t\'\"\\", "\n\r\t'\"\\"),
        (r"\\n", r"\n"),
        (r"\x41\xe2\x82\xac", "A€"),
        (r"\q\x4\xzz", r"\q\x4\xzz"),
        ("\\", "\\"),
        ("", ""),
    ],
)
def test_escapes(text: str, read: str) -> None:
    assert typed(text, "-p", True) == read
    assert typed(text, "-p", False) == text


def spawn(*args: str) -> subprocess.Popen[bytes]:
    """The program in a process of its own with the bundled model."""
    command = [sys.executable, "-m", "satchel", *args]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SATCHEL_", "LLAMA_ARG_"))}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=env)


@pytest.mark.model
def test_the_real_model_answers(bundled_model: Path) -> None:
    out, err = spawn("run", "--temp", "0", "Hello! Who are you?").communicate(timeout=60)
    assert out.startswith(b"I'm Satchel") and out.endswith(b"\n")
    assert err == b""


@pytest.mark.model
def test_the_real_model_is_stopped_by_ctrl_c(bundled_model: Path) -> None:
    process = spawn("run", "--ignore-eos", "Tell me a story")
    assert process.stdout is not None
    first = os.read(process.stdout.fileno(), 1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (first + out).endswith(b"\n") and b"Traceback" not in err


@pytest.mark.model
def test_a_closed_pipe_is_quiet(bundled_model: Path) -> None:
    process = spawn("run", "--ignore-eos", "Tell me a story")
    assert process.stdout is not None and process.stderr is not None
    os.read(process.stdout.fileno(), 1)
    process.stdout.close()
    assert process.wait(timeout=60) == CLOSED
    assert process.stderr.read() == b""


def test_an_idle_pipe_is_waited_for_and_told(
    monkeypatch: pytest.MonkeyPatch, run: Run, fake: FakeModel, capfd: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    waited: list[float] = []

    def silent(read: list[object], write: list[object], wrong: list[object], seconds: float) -> object:
        """The output, which must come as soon as the time limit has passed."""
        waited.append(seconds)
        os.write(writing, b"late\n")
        os.close(writing)
        return [], [], []

    monkeypatch.setattr("satchel.cli.once.select", SimpleNamespace(select=silent))
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main(["run", "-m", "x.gguf", "hi"]) == 0
    assert waited == [PATIENCE] and fake.conversations[0][-1]["content"] == "late\nhi"
    assert "waiting for text on stdin" in capfd.readouterr().err


@pytest.fixture
def bare(
    fake: FakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Run:
    """`satchel run` without -m, on a machine whose store has the model `mine`."""
    monkeypatch.setattr("satchel.runtime.api.model.Model.load", fake.load)
    for name in [n for n in os.environ if n.startswith(("SATCHEL_", "LLAMA_ARG_"))]:
        monkeypatch.delenv(name)
    for name in ("HF_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS", "HOME", "SATCHEL_MODELS"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    (tmp_path / "models").mkdir()
    write_model(tmp_path / "models" / "mine.gguf")
    monkeypatch.setenv("SATCHEL_FOLDERS", str(tmp_path / "models"))
    monkeypatch.chdir(tmp_path / "models")

    def call(*args: str, stdin: bytes = b"") -> tuple[int, str, str]:
        set_stdin(monkeypatch, stdin)
        code = main(["run", *args])
        return code, *capfd.readouterr()

    return call


@pytest.mark.parametrize(
    ("args", "stdin", "model", "prompt"),
    [
        (["mine", "hi"], b"", "mine", "hi"),
        (["mine", "who", "are", "you?"], b"", "mine", "who are you?"),
        (["mine.gguf", "hi"], b"", "mine", "hi"),
        (["./mine.gguf", "hi"], b"", "mine", "hi"),
        (["mine"], b"piped", "mine", "piped"),
        (["mine", "-p", "hi"], b"", "mine", "hi"),
        (["hello"], b"", "satchel-40m-q6_k", "hello"),
        (["-m", "mine", "mine"], b"", "mine", "mine"),
        (["2+2=?"], b"", "satchel-40m-q6_k", "2+2=?"),
        (["12:30"], b"", "satchel-40m-q6_k", "12:30"),
        (["1/2"], b"", "satchel-40m-q6_k", "1/2"),
        (["-p", "llama3.2"], b"", "satchel-40m-q6_k", "llama3.2"),
    ],
)
def test_a_model_may_stand_before_the_prompt(
    bare: Run, fake: FakeModel, args: list[str], stdin: bytes, model: str, prompt: str
) -> None:
    code, out, err = bare(*args, stdin=stdin)
    assert (code, out) == (0, "Hello!\n"), err
    assert fake.path.stem == model and fake.conversations[0][-1]["content"] == prompt
    assert ("this machine has no model hello, so it is the prompt" in err) == (args == ["hello"])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["llama3.2"], "this machine has no such model; `satchel pull ollama:llama3.2` gets it; -p sends it"),
        (["qwen3:0.6b"], "`satchel pull ollama:qwen3:0.6b` gets it"),
        (["me/repo"], "`satchel pull hf:me/repo` gets it"),
        (["hf:me/repo"], "not in the store; `satchel pull hf:me/repo` gets it"),
        (["none.gguf"], "none.gguf: can't be read"),
        (["why", "is", "it", "so?"], "why: this machine has no such model"),
        (["why", "is", "it", "so?"], "a prompt of several words is quoted"),
        (["why is", "it so?"], "PROMPT: expected a model and one text, or one text, got 2: quote it as one"),
        (["-m", "mine", "mine", "hi"], "expected one text, got 2"),
    ],
)
def test_a_word_that_looks_like_a_model_is_no_prompt(
    bare: Run, fake: FakeModel, args: list[str], said: str
) -> None:
    code, out, err = bare(*args)
    assert (code, out) == (2, "") and said in err and not fake.conversations


def test_a_model_alone_begins_a_chat_in_a_terminal(bare: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    begun: list[str] = []

    def converse(start: ChatStart) -> None:
        begun.append(start.model.model.stem if start.model.model else "")

    monkeypatch.setattr("satchel.cli.commands.run.converse", converse)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO()))
    assert main(["run", "mine"]) == 0 and begun == ["mine"]
    assert main(["run", "mine", "--json"]) == 2 and main(["run"]) == 2 and begun == ["mine"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--max-tokens", "5"], "no such option: --max-tokens; did you mean -n?"),
        (["--repeat-last", "5"], "did you mean --repeat-last-n?"),
        (["--no-mmapp"], "no such option: --no-mmapp (see"),
        (["--hf-tokens", "x"], "no such option: --hf-tokens"),
        (["-n", "abc"], "-n: expected a whole number, got 'abc' (see"),
        (["-n", "1.5"], "-n: expected a whole number, got '1.5' (see"),
        (["--temp", "warm"], "--temp: expected a number, got 'warm' (see"),
        (["--n-cpu-moe", "-1"], "expected 0 or more, got '-1' (see"),
    ],
)
def test_wrong_options_are_answered_in_the_commands_words(run: Run, args: list[str], said: str) -> None:
    code, out, err = run(*args, "hi")
    assert (code, out, err.count("\n")) == (2, "", 1) and said in err, err
    assert not any(name in err.partition("did you mean")[2] for name in ("--no-mmap", "--hf-token"))
