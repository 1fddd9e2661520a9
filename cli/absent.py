"""Options of llama.cpp that this version does not have: each is refused by its name with the reason.

A command that has an option of the same name keeps its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Annotated, Any

import typer

from satchel.cli.main import ABSENT
from satchel.cli.usage import UsageError

# reason: the options, aliases joined by spaces
REASONS = {
    "models are pulled first: `satchel pull hf:USER/REPO`, then -m hf:USER/REPO": (
        "--offline, -mu --model-url, -hf -hfr --hf-repo, -hff --hf-file, -dr --docker-repo"
    ),
    "`satchel pull` reads the token from HF_TOKEN, where no list of processes shows it": "-hft --hf-token",
    "`satchel list` shows the models of this machine": "-cl --cache-list",
    "one conversation is run at a time, and `run --n-completions` samples several answers": (
        "-np --parallel, -cb --cont-batching, -nocb, -kvu --kv-unified"
    ),
    "`run` and `chat` have --on-overflow; a shift keeps the system message": (
        "--context-shift, --no-context-shift, --keep"
    ),
    "of a layer with a window, that window alone is kept": "--swa-full",
    "threads are placed by the system": (
        "-C --cpu-mask, -Cr --cpu-range, --cpu-strict, --prio, --poll, --numa, -Cb --cpu-mask-batch,"
        "-Crb --cpu-range-batch"
    ),
    "layers are placed by memory and measured speed; --device, -ngl, -ot and --gpu-memory steer that": (
        "-sm --split-mode, -ts --tensor-split, -mg --main-gpu, -fit --fit, -fitt --fit-target,"
        "-fitc --fit-ctx, -ncffn --n-cpu-ffn, --no-op-offload"
    ),
    "`satchel doctor` lists the devices": "--list-devices",
    "a model file is always mapped, never locked": (
        "-lm --load-mode, --mlock, --no-mmap, --mmap, -lzm --lazy-mode"
    ),
    "there is one way to compute attention": "-fa --flash-attn",
    "what is known of a prompt is always kept; `chat --session NAME` keeps it for another run": (
        "--cache-prompt, --no-cache-prompt, --cache-reuse, -cram --cache-ram, -ctxcp --ctx-checkpoints,"
        "--slot-save-path, -sps --slot-prompt-similarity, --prompt-cache"
    ),
    "it reads text alone; -f takes a text file": "-bf --binary-file, --image, --audio, --video, -mm --mmproj",
    "control tokens are never printed": "-sp --special",
    "`satchel chat` is the interactive command": "-i --interactive, -if --interactive-first",
    'a message of several lines ends its lines with \\ or stands between """': "-mli --multiline-input",
    "colour is used where a terminal shows it; NO_COLOR=1 turns it off": "-co --color",
    "output that is no terminal is always plain": "--simple-io",
    "a model is used with the template in its file": (
        "--no-jinja, --chat-template, --chat-template-file, --chat-template-kwargs"
    ),
    "`run` and `chat` have --reasoning; thinking is shown as the model writes it": (
        "-rea --reasoning, --reasoning-effort, --reasoning-budget, --reasoning-format"
    ),
    "`run`, `chat` and `embed` apply adapters and control vectors": (
        "--lora, --lora-scaled, --control-vector, --control-vector-scaled, --control-vector-layer-range,"
        "--lora-init-without-apply"
    ),
    "`run` and `chat` decode speculatively with --lookup or --draft-model": (
        "-md --draft-model --model-draft, --lookup, --draft-max --draft --draft-n --spec-draft-n-max,"
        "--draft-min --draft-n-min --spec-draft-n-min, --spec-type"
    ),
    "the draft model runs where the model does": "-ngld --gpu-layers-draft",
    "drafts are made as long as that is faster": "--spec-draft-p-min --draft-p-min",
    "it has no server": (
        "-a --alias, --host, --port, --api-key, --api-key-file, --ssl-key-file, --ssl-cert-file, "
        "-to --timeout, --threads-http, --metrics, --slots, --no-slots, --props,"
        "--embedding --embeddings,"
        "--rerank --reranking, --pooling, --path, --api-prefix, --no-webui, --cors-origins, --models-dir,"
        "--models-preset, --models-max, --sleep-idle-seconds, --media-path, --log-prompts-dir"
    ),
    "it keeps no log; -v prints the timings": (
        "-lv --verbosity --log-verbosity, --log-file, --log-jsonl, --log-disable, --log-prefix,"
        "--log-timestamps"
    ),
    "the whole help is --help": "--usage",
    "`satchel completion bash` prints the script": "--completion-bash",
}


def absent_options(taken: Collection[str]) -> Iterator[tuple[str, Any, Any]]:
    """(parameter name, annotation, default) of a hidden option for each absent one, except the names in
    `taken`.
    """
    for reason, listed in REASONS.items():
        for entry in listed.split(","):
            names = [name for name in entry.split() if name not in taken]
            if names:
                # All are declared as flags, even with a value: typer's validators of other types are slow to
                # build.
                option = typer.Option(*names, hidden=True, is_eager=True, callback=_refuser(names, reason))
                yield names[0].strip("-").replace("-", "_") + ABSENT, Annotated[bool, option], False


def _refuser(names: list[str], reason: str) -> Callable[[bool], None]:
    def refuse(given: bool) -> None:
        if given:
            raise UsageError(f"{'/'.join(names)} is not in this version: {reason}")

    return refuse
