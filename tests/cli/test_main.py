"""The entry program: only the chosen command is imported, options parse as llama.cpp's, errors are one
line.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, get_args

import pytest
import typer
from waiting import SECONDS

from satchel.cli import main as program
from satchel.errors import RequestError

LAYERS = typer.Option("-ngl", "--gpu-layers", "--n-gpu-layers", envvar="LLAMA_ARG_N_GPU_LAYERS")


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, object]:
    """A command `probe` that records its arguments; it raises an error given under "raise"."""
    seen: dict[str, object] = {}

    def probe(
        text: Annotated[str, typer.Argument()] = "",
        layers: Annotated[int, LAYERS] = 0,
        top_k: Annotated[int, typer.Option("--top-k")] = 40,
        n: Annotated[int, typer.Option("-n", "--predict")] = -1,
        prompt: Annotated[str, typer.Option("-p", "--prompt")] = "",
        conversation: Annotated[bool, typer.Option("-cnv/-no-cnv")] = True,
        kind: Annotated[str, typer.Option("-ctk")] = "f16",
    ) -> int | None:
        """Keep what was given."""
        if isinstance(error := seen.get("raise"), BaseException):
            raise error
        seen.update(locals())
        return seen.get("code")  # type: ignore[return-value]

    module = ModuleType("satchel.cli.commands.probe")
    module.probe = probe  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    file = tmp_path / "probe.py"
    file.write_text('def probe():\n    """Keep what was given.\n\n    And more."""\n')
    monkeypatch.setattr(program, "commands", lambda: {"probe": file})
    monkeypatch.setattr(program, "parsed", program.parsed.__wrapped__)  # each test has a command of its own
    return seen


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("-ngl 99", "layers", 99),
        ("-ngl=99", "layers", 99),
        ("--n-gpu-layers 3", "layers", 3),
        ("--n_gpu_layers 3", "layers", 3),
        ("--gpu_layers=4", "layers", 4),
        ("--top_k 7", "top_k", 7),
        ("-n 5", "n", 5),
        ("-n5", "n", 5),
        ("-n -1", "n", -1),
        ("-no-cnv", "conversation", False),
        ("-cnv", "conversation", True),
        ("-ctk q8_0", "kind", "q8_0"),
        ("-p -sys", "prompt", "-sys"),
        ("-p --debug_x", "prompt", "--debug_x"),
        ("--prompt=a_b=c", "prompt", "a_b=c"),
        ("hello", "text", "hello"),
        ("-- -ngl", "text", "-ngl"),
    ],
)
def test_options_parse(probe: dict[str, object], line: str, name: str, value: object) -> None:
    assert program.main(["probe", *line.split()]) == 0
    assert probe[name] == value


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("probe --topk 3", "no such option: --topk; did you mean --top-k?"),
        ("probe --top_kk 3", "did you mean --top-k?"),
        ("probe -nlg 9", "no such option: -nlg; did you mean -ngl?"),
        ("probe -xyzzy", "no such option: -xyzzy (see"),
        ("probe -ngl", "requires an argument"),
        ("probe -ngl many", "error: -ngl: "),
        ("probe a b", "unexpected extra argument"),
        ("prob", "no command 'prob'; did you mean probe?"),
        ("--modle x", "no option '--modle'"),
    ],
)
def test_wrong_use_is_one_line_and_2(
    probe: dict[str, object], capsys: pytest.CaptureFixture[str], line: str, words: str
) -> None:
    assert program.main(line.split()) == program.USAGE
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err.startswith("satchel: error: ")) == ("", 1, True)
    assert words in err
    assert "text" not in probe


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (RequestError("no room\nfor it"), 1, "satchel: error: no room for it\n"),
        (FileNotFoundError(2, "No such file", "x.gguf"), 1, "satchel: error: x.gguf: No such file\n"),
        (MemoryError(), 1, "out of memory"),
        (KeyError("x"), 1, "internal error: KeyError: 'x'; this is a bug"),
        (KeyboardInterrupt(), 130, ""),
        (typer.Abort(), 130, ""),
        (typer.Exit(7), 7, ""),
        (SystemExit(3), 3, ""),
        (program.UsageError("not both"), 2, "not both (see `satchel probe --help`)"),
        (typer.BadParameter("not both"), 2, "not both (see `satchel probe --help`)"),
    ],
)
def test_errors_become_codes(
    probe: dict[str, object], capsys: pytest.CaptureFixture[str], error: BaseException, code: int, words: str
) -> None:
    probe["raise"] = error
    assert program.main(["probe"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err if words else err == ""
    assert "Traceback" not in err


def test_debug_shows_where(probe: dict[str, object]) -> None:
    probe["raise"] = RequestError("no")
    with pytest.raises(RequestError):
        program.main(["probe", "--debug"])


def test_a_command_gives_its_exit_code(probe: dict[str, object]) -> None:
    probe["code"] = 5
    assert program.main(["probe"]) == 5


@pytest.mark.parametrize("variable", ["LLAMA_ARG_N_GPU_LAYERS", "SATCHEL_N_GPU_LAYERS"])
def test_environment_gives_options(
    probe: dict[str, object], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "12")
    assert program.main(["probe"]) == 0
    assert probe["layers"] == 12
    assert program.main(["probe", "-ngl", "3"]) == 0
    assert probe["layers"] == 3


def test_own_variable_goes_first(probe: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_N_GPU_LAYERS", "1")
    monkeypatch.setenv("SATCHEL_N_GPU_LAYERS", "2")
    assert program.main(["probe"]) == 0
    assert probe["layers"] == 2


@pytest.mark.parametrize("line", ["", "--help", "-h", "help"])
def test_help_lists_commands_without_importing(
    probe: dict[str, object], capsys: pytest.CaptureFixture[str], line: str
) -> None:
    assert program.main(line.split()) == 0
    assert "  probe  Keep what was given.\n" in capsys.readouterr().out


@pytest.mark.parametrize("line", ["probe --help", "probe -h", "help probe"])
def test_help_of_a_command(probe: dict[str, object], capsys: pytest.CaptureFixture[str], line: str) -> None:
    assert program.main(line.split()) == 0
    assert "  -ngl, --gpu-layers N" in capsys.readouterr().out
    assert program.main(["probe", "--help-all"]) == 0
    assert "  -ngl, --gpu-layers, --n-gpu-layers N" in capsys.readouterr().out


def test_every_command_has_a_summary_of_one_line() -> None:
    assert [
        name for name, path in program.commands().items() if not program.summary(path).endswith(".")
    ] == []


def run(*args: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "satchel", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)  # type: ignore[call-overload,no-any-return]


def test_version_from_the_shell() -> None:
    from importlib.metadata import version

    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"satchel {version('satchel')}\n")


@pytest.mark.parametrize("line", ["--version", "--help", "nothing"])
def test_start_imports_nothing_heavy(line: str) -> None:
    script = (
        "import sys; from satchel.cli.main import main; main(sys.argv[1:]);"
        "print(*sorted({'numpy', 'rich', 'typer', 'numba', 'jinja2'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, line], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr.splitlines()[-1] == ""


def test_import_of_the_package_is_lazy() -> None:
    script = (
        "import satchel, sys; print([n for n in sys.modules if n.startswith('satchel.')],"
        " 'numpy' in sys.modules, satchel.ModelError.__name__, satchel.__version__)"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("[] False ModelError ")


def test_names_of_the_package_are_those_of_their_modules() -> None:
    import satchel
    from satchel.runtime.grammar import spec

    for name in satchel.__all__:
        if name not in ("__version__", "kernels"):
            assert getattr(satchel, name).__name__ == name
    # Every grammar of a request is at the root.
    assert {kind.__name__ for kind in get_args(spec.Spec)} <= set(satchel.__all__)


def test_unknown_name_of_the_package() -> None:
    import satchel

    with pytest.raises(AttributeError, match="nonsense"):
        satchel.nonsense  # noqa: B018
    assert set(satchel.__all__) <= set(dir(satchel))


@pytest.mark.parametrize("line", ["--help", "run --help", "run --help --debug"])
def test_a_closed_pipe_is_quiet(line: str) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "satchel", *line.split()],
            stdout=closed,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (program.CLOSED, b"")


def test_an_interrupt_is_quiet() -> None:
    script = (
        "import sys; import satchel.cli.main as p;"
        "p.overview = lambda everything: ("
        "print('ready', flush=True), [0 for zero in iter(int, 1) if zero]);"  # for ever
        "sys.exit(p.main(['--help']))"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == program.INTERRUPTED
        assert process.stderr.read() == ""
