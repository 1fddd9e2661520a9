"""Command lines that model cards show for programs of llama.cpp: each works with `satchel chat` or `run` in
place of `llama-cli`, and `satchel serve` in place of `llama-server`. Nothing is pulled or loaded.
"""

from __future__ import annotations

import io
import shlex
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from satchel.cli import main as program
from satchel.cli.options import ModelOptions
from satchel.errors import RequestError
from satchel.runtime.grammar.spec import Gbnf
from satchel.runtime.speculation import Speculation
from satchel.store import Store

pytest.importorskip("fastapi")
# (command line, the model that it pulls or opens, what else must have been read)
CHATS = [
    ("-hf unsloth/Qwen3-8B-GGUF:Q4_K_M", "hf:unsloth/Qwen3-8B-GGUF:Q4_K_M", {}),
    ("-hf ggml-org/gemma-3-1b-it-GGUF", "hf:ggml-org/gemma-3-1b-it-GGUF", {}),
    (
        '--hf-repo ggml-org/tiny-GGUF --hf-file tiny-q4_k_m.gguf -p "The meaning to life is"',
        "hf:ggml-org/tiny-GGUF/tiny-q4_k_m.gguf",
        {},
    ),
    (
        "-ngl 35 -m llama-2-7b-chat.Q4_K_M.gguf --color -c 4096 --temp 0.7 --repeat_penalty 1.1 -n -1"
        ' -p "[INST] hi [/INST]"',
        "llama-2-7b-chat.Q4_K_M.gguf",
        {"context": 4096, "gpu_layers": "35"},
    ),
    ("-ngl 32 -m m.gguf --color -c 2048 -i -ins", "m.gguf", {"context": 2048}),
    (
        "-hf Qwen/Qwen3-8B-GGUF:Q8_0 --jinja --color -ngl 99 -fa -sm row --temp 0.6 --top-k 20 --top-p 0.95"
        " --min-p 0 --presence-penalty 1.5 -c 40960 -n 32768 --no-context-shift",
        "hf:Qwen/Qwen3-8B-GGUF:Q8_0",
        {"context": 40960, "gpu_layers": "99"},
    ),
    (
        '-m qwen2.5-7b-instruct-q5_k_m.gguf -co -cnv -p "You are a helpful assistant." -fa -ngl 80 -n 512',
        "qwen2.5-7b-instruct-q5_k_m.gguf",
        {"gpu_layers": "80"},
    ),
    (
        "-m m.gguf -c 131072 --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 32768",
        "m.gguf",
        {
            "override_kv": (
                "{arch}.rope.scaling.type=str:yarn",
                "{arch}.rope.scale_linear=float:4.0",
                "{arch}.rope.scaling.factor=float:4.0",
                "{arch}.rope.scaling.original_context_length=int:32768",
            )
        },
    ),
    (
        "--model m-00001-of-00003.gguf --threads 32 --ctx-size 16384 --n-gpu-layers 99"
        ' -ot ".ffn_.*_exps.=CPU" --seed 3407 --prio 3 --temp 0.6 --min-p 0.0 --top-p 0.95 --top-k 20',
        "m-00001-of-00003.gguf",
        {"threads": 32, "override_tensor": (".ffn_.*_exps.=CPU",)},
    ),
    (
        "-hf unsloth/gpt-oss-20b-GGUF:F16 --jinja -ngl 99 --threads -1 --ctx-size 16384 --temp 1.0"
        " --top-p 1.0 --top-k 0",
        "hf:unsloth/gpt-oss-20b-GGUF:F16",
        {"threads": 0},
    ),
    (
        "-m Phi-3-mini-4k-instruct-q4.gguf -ngl 33 -n 256 --no-display-prompt -p 'Why is the sky blue?'",
        "Phi-3-mini-4k-instruct-q4.gguf",
        {},
    ),
]
# The lines of llama.cpp's README.
CHATS += [
    ("-m model.gguf", "model.gguf", {}),
    ("-m model.gguf -cnv --chat-template chatml", "model.gguf", {"chat_template": "chatml"}),
]
RUNS = [
    (
        "--model m.gguf --cache-type-k q4_0 --threads 12 -no-cnv --prio 2 --temp 0.6 --ctx-size 8192"
        ' --seed 3407 --prompt "<|User|>Hello<|Assistant|>"',
        "m.gguf",
        {"cache_type_k": "q4_0", "threads": 12},
    ),
    (
        "-m m.gguf -hfd ggml-org/draft-GGUF --draft-max 8 -ngld 99 -td 4 -p hi",
        "hf:ggml-org/draft-GGUF",
        {},
    ),
    ("-hf microsoft/phi-4-gguf --mlock --no-mmap -t 8 -st -p hi", "hf:microsoft/phi-4-gguf", {"threads": 8}),
]
SERVERS: list[tuple[str, str, dict[str, Any]]] = [
    (
        "-hf ggml-org/gpt-oss-20b-GGUF --ctx-size 0 --jinja -ub 2048 -b 2048 -ngl 99 -fa",
        "gpt-oss-20b-GGUF",
        {},
    ),
    ("--hf-repo ggml-org/tiny-GGUF --hf-file tiny-q4_k_m.gguf -c 2048", "tiny-q4_k_m", {"context": 2048}),
    (
        "-hf Qwen/Qwen3-8B-GGUF:Q8_0 --jinja --reasoning-format deepseek -ngl 99 -fa -sm row --temp 0.6"
        " --top-k 20 --top-p 0.95 --min-p 0 -c 40960 -n 32768 --no-context-shift --port 8081",
        "Qwen3-8B-GGUF",
        {
            "defaults": {
                "temperature": 0.6,
                "top_k": 20,
                "top_p": 0.95,
                "min_p": 0,
                "max_tokens": 32768,
                "on_overflow": "error",
            }
        },
    ),
    (
        '--model m.gguf --alias "unsloth/Qwen3" --threads -1 --n-gpu-layers 999 --prio 3 --min-p 0.01'
        " --ctx-size 16384 --port 8001 --jinja",
        "unsloth/Qwen3",
        {"context": 16384, "defaults": {"min_p": 0.01}},
    ),
    (
        "-hf ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF --port 8012 -ngl 99 -fa -ub 1024 -b 1024 --ctx-size 0"
        " --cache-reuse 256",
        "Qwen2.5-Coder-7B-Q8_0-GGUF",
        {"batch": 1024},
    ),
    (
        "-hf nomic-ai/nomic-embed-text-v1.5-GGUF --embeddings --pooling mean -ub 8192",
        "nomic-embed-text-v1.5-GGUF",
        {"override_kv": ("{arch}.pooling_type=int:1",)},
    ),
    ("-hf gpustack/bge-reranker-v2-m3-GGUF --reranking --host 0.0.0.0", "bge-reranker-v2-m3-GGUF", {}),
    (
        "-m m.gguf -c 32768 -np 4 -cb -kvu --metrics --slots --no-webui --timeout 600 --threads-http 8"
        " --api-key one,two",
        "m",
        {"slots": 4, "context": 32768, "kv_budget": "context"},
    ),
    (
        "-m m.gguf --jinja --chat-template-kwargs '{\"enable_thinking\": false}' --reasoning-budget 0",
        "m",
        {"chat_template_kwargs": '{"enable_thinking": false}', "defaults": {"reasoning": 0}},
    ),
]
# The lines of llama.cpp's README.
SERVERS += [
    ("-hf ggml-org/gemma-3-1b-it-GGUF", "gemma-3-1b-it-GGUF", {}),
    ("-m model.gguf --port 8080", "model", {}),
    ("-m model.gguf -c 16384 -np 4", "model", {"context": 16384, "slots": 4}),
    ("-m model.gguf -md draft.gguf", "model", {"speculation": Speculation(draft_model=Path("draft.gguf"))}),
    ("-m model.gguf --grammar 'root ::= \"a\"'", "model", {"defaults": {"grammar": Gbnf('root ::= "a"')}}),
]


class Reached(Exception):
    """The model would be loaded now."""


@pytest.fixture
def pulls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The names that were pulled. The store answers with a file named after the repository."""
    found: list[str] = []

    def pull(store: Store, name: str, *_: object, **__: object) -> Path:
        if store.offline:
            raise RequestError("not in the store")
        found.append(name)
        return tmp_path / f"{name.rsplit('/', 1)[-1].partition(':')[0].removesuffix('.gguf')}.gguf"

    monkeypatch.setattr(Store, "pull", pull)
    monkeypatch.setattr("satchel.server.log.set_up", lambda *_: None)  # it would keep this test's stderr
    monkeypatch.setattr(program, "parsed", cache(program.parsed))
    monkeypatch.setenv("SATCHEL_MODELS", str(tmp_path / "store"))
    monkeypatch.setenv("SATCHEL_CONFIG", "")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    return found


def check(options: Any, wanted: dict[str, Any]) -> None:
    assert {name: getattr(options, name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("command", "line", "model", "wanted"),
    [*(("chat", *case) for case in CHATS), *(("run", *case) for case in RUNS)],
)
def test_a_line_for_llama_cli(
    command: str,
    line: str,
    model: str,
    wanted: dict[str, Any],
    pulls: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from satchel.cli.options import loading

    def opened(options: ModelOptions, *_: object, **__: object) -> None:
        path = options.path
        assert (pulls or [str(path)]) == [model]
        check(loading(options), wanted)
        raise Reached

    monkeypatch.setattr("satchel.cli.once.open_model", opened)
    monkeypatch.setattr("satchel.cli.chat.start.open_model", opened)
    with pytest.raises(Reached):
        program.dispatch([command, *shlex.split(line)])
    assert all(said.startswith("satchel: note: ") for said in capsys.readouterr().err.splitlines())


@pytest.mark.parametrize(("line", "name", "wanted"), SERVERS)
def test_a_line_for_llama_server(
    line: str,
    name: str,
    wanted: dict[str, Any],
    pulls: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def served(read: Any, *_: object) -> None:
        models = read().models
        assert name in models
        check(models[name].options, wanted)
        raise Reached

    monkeypatch.setattr("satchel.server.run.run_server", served)
    with pytest.raises(Reached):
        program.dispatch(["serve", *shlex.split(line)])
    assert bool(pulls) == ("-hf" in line or "--hf-repo" in line)
    assert all(said.startswith("satchel: note: ") for said in capsys.readouterr().err.splitlines())


def test_a_stored_model_is_not_pulled_again(pulls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def stored(store: Store, name: str, *_: object, **__: object) -> Path:
        assert store.offline
        return Path(f"{name.partition('/')[2]}.gguf")

    monkeypatch.setattr(Store, "pull", stored)
    assert ModelOptions(hub="a/b").path == Path("b.gguf")
