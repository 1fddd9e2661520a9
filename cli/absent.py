"""Options of llama.cpp that this version does not have: each is refused by its name with the reason.

A command that has an option of the same name keeps its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Annotated, Any

import typer

from satchel.cli.main import ABSENT, UsageError

# reason: the options, aliases joined by spaces
REASONS = {
    "it downloads no models; give a file with -m": (
        "-mu --model-url, -hf -hfr --hf-repo, -hff --hf-file, -hft --hf-token, -dr --docker-repo, --offline,"
        "-cl --cache-list"
    ),
    "it runs one conversation at a time": "-np --parallel, -cb --cont-batching, -nocb, -kvu --kv-unified",
    "a full context is an error here, nothing is shifted out of it": (
        "--keep, --context-shift, --no-context-shift, --swa-full"
    ),
    "threads are placed by the system": (
        "-C --cpu-mask, -Cr --cpu-range, --cpu-strict, --prio, --poll, --numa, -Cb --cpu-mask-batch,"
        "-Crb --cpu-range-batch"
    ),
    "it runs on the CPU alone, so there is nothing to share out": (
        "-sm --split-mode, -ts --tensor-split, -mg --main-gpu, --list-devices, -fit --fit,"
        "-fitt --fit-target, -fitc --fit-ctx, -ot --override-tensor, -cmoe --cpu-moe, -ncmoe --n-cpu-moe,"
        "-ncffn --n-cpu-ffn,"
        "--no-op-offload, -nkvo --no-kv-offload"
    ),
    "a model file is always mapped, never locked": (
        "-lm --load-mode, --mlock, --no-mmap, --mmap, -lzm --lazy-mode"
    ),
    "there is one way to compute attention": "-fa --flash-attn",
    "the part of a prompt that is known already is always kept, for this run only": (
        "--cache-prompt, --no-cache-prompt, --cache-reuse, -cram --cache-ram, -ctxcp --ctx-checkpoints,"
        "--slot-save-path, -sps --slot-prompt-similarity, --prompt-cache"
    ),
    "its samplers are penalties, top-k, top-p, min-p and temperature, in this order": (
        "--typical --typical-p, --top-nsigma --top-n-sigma, --xtc-probability, --xtc-threshold,"
        "--dry-multiplier, --dry-base, --dry-allowed-length, --dry-penalty-last-n, --dry-sequence-breaker,"
        "--dynatemp-range,"
        "--dynatemp-exp, --mirostat, --mirostat-lr, --mirostat-ent, --samplers, --sampler-seq --sampling-seq,"
        "-l --logit-bias"
    ),
    "answers cannot be held to a grammar or a schema": (
        "--grammar, --grammar-file, -j --json-schema, -jf --json-schema-file"
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
    "thinking is shown as the model writes it": "--reasoning-format, --reasoning-effort, --reasoning-budget",
    "it applies no adapters or control vectors": (
        "--lora, --lora-scaled, --control-vector, --control-vector-scaled, --control-vector-layer-range"
    ),
    "it drafts no tokens": (
        "-md --model-draft, -ngld --gpu-layers-draft, --spec-type, --spec-draft-n-max, --spec-draft-n-min,"
        "--spec-draft-p-min, --draft, --draft-max, --draft-min, --draft-p-min"
    ),
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
    "the whole help is --help": "--usage, --completion-bash",
}


def absent_options(taken: Collection[str]) -> Iterator[tuple[str, Any, Any]]:
    """(parameter name, annotation, default) of a hidden option for each absent one; `taken` names are not."""
    for reason, listed in REASONS.items():
        for entry in listed.split(","):
            names = [name for name in entry.split() if name not in taken]
            if names:
                # All are flags, those with a value too: typer builds a costly validator for any other type.
                option = typer.Option(*names, hidden=True, is_eager=True, callback=_refuser(names, reason))
                yield names[0].strip("-").replace("-", "_") + ABSENT, Annotated[bool, option], False


def _refuser(names: list[str], reason: str) -> Callable[[bool], None]:
    def refuse(given: bool) -> None:
        if given:
            raise UsageError(f"{'/'.join(names)} is not in this version: {reason}")

    return refuse
