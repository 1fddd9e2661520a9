"""Every flag of llama-cli and llama-server of llama.cpp 0c1e57098, with what it does here.

The table is the source of the parsing (arguments.py), of the notes and refusals, and of the page
docs/llama-cpp-flags.md. A flag that a command declares itself is the command's; the table's verdict then only
describes it. Rows end with flags that other versions of llama.cpp have and that model cards still show.
"""

from __future__ import annotations

from satchel.cli.llama_cpp.verdict import Row, note, refused, row, runs, same

TEXT_ALONE = "models here read text alone"
SYSTEM_PLACES = "the system places threads; `taskset -c 0-7 satchel ...` keeps them on these cores"
UNPINNED = note("the system places the threads")
MAPPED = note("a model file is always mapped, and weights are copied into the processor's own layout")
PREFIXES = note("every prompt's prefix is kept in the cache as long as there is room, for all requests")
TIMINGS = note("-v prints the timings")
DRAFT_PLACE = "the draft model runs on the device of the model"
DRAFT_THREADS = note("the draft model uses the threads of the model")
DRAFT_LENGTH = note("--lookup and -md draft as long as that is measured to be faster")
NGRAMS = note("--lookup finds the lengths of its n-grams by measured speed")
PICTURES = refused(TEXT_ALONE)
NO_LOG = note("the command keeps no log; -v prints the timings")
TOOLS = refused("the server runs no tools; the client runs what the model calls")
DEFAULT = same("for requests that leave it out")
PULLED = "the file is pulled into the store, unless it is there"


def _preset(name: str) -> str:
    return f"-hf {name} is the model that it stands for"


COMMON = (
    row("-h --help --usage"),
    row("--version", "", runs("--version")),
    row("-cl --cache-list", "", runs("list")),
    row("--completion-bash", "", runs("completion", "bash")),
    row("-t --threads", "4"),
    row("-tb --threads-batch", "4"),
    row("-C --cpu-mask", "ff", refused(SYSTEM_PLACES)),
    row("-Cr --cpu-range", "0-7", refused(SYSTEM_PLACES)),
    row("--cpu-strict", "1", UNPINNED),
    row("--prio", "2", note("the process has the priority that it was started with; `nice` gives another")),
    row("--poll", "50", UNPINNED),
    row("-Cb --cpu-mask-batch", "ff", refused(SYSTEM_PLACES)),
    row("-Crb --cpu-range-batch", "0-7", refused(SYSTEM_PLACES)),
    row("--cpu-strict-batch", "1", UNPINNED),
    row("--prio-batch", "2", note("the process has the priority that it was started with")),
    row("--poll-batch", "1", UNPINNED),
    row("-c --ctx-size", "4096", server=same("for each request: slots do not divide it"), cli=same()),
    row("-n --predict --n-predict", "64", cli=same(), server=DEFAULT),
    row("-b --batch-size", "512"),
    row("-ub --ubatch-size", "512"),
    row("--keep", "4", note("a shift keeps the system message and drops the oldest tokens after it")),
    row("--swa-full", "", note("of a layer with a window, that window alone is read, and so kept")),
    row("-fa --flash-attn", "[on]", note("attention is always computed without a matrix of scores")),
    row("-p --prompt", "hi", cli=same()),
    row("--perf --no-perf", "", cli=TIMINGS, server=note("each answer and /metrics have the timings")),
    row("-f --file", "prompt.txt", cli=same("put before -p; may be repeated")),
    row("-bf --binary-file", "prompt.bin", cli=refused("prompts are UTF-8 text; -f takes a text file")),
    row(
        "-e --escape --no-escape",
        cli=same("also in -sys and -r"),
        server=note("requests are JSON, which has its own escapes"),
    ),
    row("--rope-scaling", "yarn", same("beside it, or in the file: a factor")),
    row("--rope-scale", "4"),
    row("--rope-freq-base", "1e6"),
    row("--rope-freq-scale", "0.25"),
    row("--yarn-orig-ctx", "4096"),
    row("--yarn-ext-factor", "1"),
    row("--yarn-attn-factor", "1"),
    row("--yarn-beta-slow", "1"),
    row("--yarn-beta-fast", "32"),
    row("-kvo --kv-offload -nkvo --no-kv-offload"),
    row("--repack -nr --no-repack"),
    row("--no-host", "", note("weights are packed for the device that computes with them")),
    row("-ctk --cache-type-k", "q8_0", same("also fp8; not q4_1, iq4_nl, q5_0, q5_1")),
    row("-ctv --cache-type-v", "q8_0", same("also fp8; not q4_1, iq4_nl, q5_0, q5_1")),
    row("-dt --defrag-thold", "0.1", note("the cache consists of pages and needs no defragmentation")),
    row(
        "-np --parallel",
        "4",
        cli=same("of `run`: completions at once; `chat` has one conversation"),
        server=same(),
    ),
    row("--rpc", "host:50052", refused("a model runs on the devices of one machine; -dev names them")),
    row("--mlock", "", MAPPED),
    row("--mmap --no-mmap", "", MAPPED),
    row("-dio --direct-io -ndio --no-direct-io", "", MAPPED),
    row("-lm --load-mode", "auto", MAPPED),
    row("-lzm --lazy-mode", "on", note("--stream-weights reads weights as they are needed")),
    row("--numa", "distribute", note("the system places threads and pages; `numactl` places the process")),
    row("-dev --device", "cpu", same("`satchel doctor` lists the devices; CUDA1 is cuda:1, ROCm0 hip")),
    row("--list-devices", "", runs("doctor")),
    row("-ot --override-tensor", "exps=cpu", same("devices as of -dev; may be repeated")),
    row("-cmoe --cpu-moe"),
    row("-ncmoe --n-cpu-moe", "2"),
    row("--moe-cache-mib", "4096", refused("--expert-cache 4GiB caches the most used experts")),
    row("-ncffn --n-cpu-ffn", "2", refused(r"-ot 'blk\.[01]\.ffn_=cpu' keeps those of layers 0 and 1 there")),
    row("-ngl --gpu-layers --n-gpu-layers", "0", same("without a GPU, a note says that it has no effect")),
    row("-sm --split-mode", "layer", same("row is taken as layer")),
    row("-ts --tensor-split", "3,1"),
    row("-mg --main-gpu", "0", refused("-dev cuda:1 names the GPU to use")),
    row(
        "-fit --fit",
        "[on]",
        note("layers and context always fit into the free memory, unless -c, -ngl are given"),
    ),
    row("-fitt --fit-target", "1024", refused("--gpu-memory 20GB says how much of each GPU is used")),
    row("-fitc --fit-ctx", "4096", note("without -c, the context is at least 512 tokens")),
    row("--check-tensors"),
    row(
        "--override-kv",
        "general.name=str:x",
        same("a key may begin with {arch}., the architecture; repeatable"),
    ),
    row("--op-offload", "", note("--prefetch-weights auto, the default, does it where that is faster")),
    row("--no-op-offload", "", refused("--prefetch-weights off computes weights where they lie")),
    row("--lora", "a.gguf"),
    row("--lora-scaled", "a.gguf:0.5"),
    row("--control-vector", "v.gguf"),
    row("--control-vector-scaled", "v.gguf:0.5"),
    row("--control-vector-layer-range", "1 3"),
    row("-m --model", "model.gguf", same("also a name of `satchel list`")),
    row("-mu --model-url", "https://example.com/m.gguf", same(PULLED)),
    row("-dr --docker-repo", "gemma3", refused("take the model from Hugging Face (hf:) or Ollama (ollama:)")),
    row("-hf -hfr --hf-repo", "user/repo:Q4_K_M", same(PULLED)),
    row("-hff --hf-file", "m.gguf", same("beside -hf")),
    row(
        "-hft --hf-token",
        "hf_x",
        refused("every user sees it in the list of processes; set the variable HF_TOKEN"),
    ),
    row(
        "--log-disable",
        cli=NO_LOG,
        server=note("the log has warnings alone; --log-level error leaves them out"),
    ),
    row("--log-file", "log.txt", refused("the log goes to stderr: 2> FILE keeps it")),
    row("--log-jsonl", "", cli=NO_LOG, server=same("on stderr")),
    row("--no-log-jsonl", "", note("the log is text, unless --log-json is given")),
    row("--log-colors", "[auto]", note("the log has no colours")),
    row("-v --verbose --log-verbose", "", cli=same("prints the timings"), server=same("--log-level debug")),
    row("--offline", "", same()),
    row("-lv --verbosity --log-verbosity", "3", cli=NO_LOG, server=note("--log-level says what is logged")),
    row("--log-prefix --no-log-prefix", "", note("each line of the log has its level")),
    row("--log-timestamps --no-log-timestamps", "", note("each line of the log has its time")),
    row(
        "--spec-draft-type-k -ctkd --cache-type-k-draft",
        "f16",
        note("the draft model's cache has the types of the model's"),
    ),
    row(
        "--spec-draft-type-v -ctvd --cache-type-v-draft",
        "f16",
        note("the draft model's cache has the types of the model's"),
    ),
)

SAMPLING = (
    row("--samplers", "top_k;temperature", server=DEFAULT, cli=same()),
    row("-s --seed", "7", server=DEFAULT, cli=same()),
    row("--sampler-seq --sampling-seq", "kt", server=DEFAULT, cli=same()),
    row("--ignore-eos", "", server=DEFAULT, cli=same()),
    row("--temp --temperature", "0.5", server=DEFAULT, cli=same()),
    row("--top-k", "20", server=DEFAULT, cli=same()),
    row("--top-p", "0.9", server=DEFAULT, cli=same()),
    row("--min-p", "0.1", server=DEFAULT, cli=same()),
    row("--top-nsigma --top-n-sigma", "1", server=DEFAULT, cli=same()),
    row("--xtc-probability", "0.1", server=DEFAULT, cli=same()),
    row("--xtc-threshold", "0.2", server=DEFAULT, cli=same()),
    row("--typical --typical-p", "0.9", server=DEFAULT, cli=same()),
    row("--repeat-last-n", "32", server=DEFAULT, cli=same()),
    row("--repeat-penalty", "1.1", server=DEFAULT, cli=same()),
    row("--presence-penalty", "0.5", server=DEFAULT, cli=same()),
    row("--frequency-penalty", "0.5", server=DEFAULT, cli=same()),
    row("--dry-multiplier", "0.8", server=DEFAULT, cli=same()),
    row("--dry-base", "1.5", server=DEFAULT, cli=same()),
    row("--dry-allowed-length", "3", server=DEFAULT, cli=same()),
    row("--dry-penalty-last-n", "64", server=DEFAULT, cli=same()),
    row("--dry-sequence-breaker", "none", server=DEFAULT, cli=same()),
    row("--adaptive-target", "0.5", refused("there is no adaptive-p; --mirostat 2 keeps an entropy")),
    row("--adaptive-decay", "0.9", refused("there is no adaptive-p; --mirostat-lr is Mirostat's rate")),
    row("--dynatemp-range", "0.2", server=DEFAULT, cli=same()),
    row("--dynatemp-exp", "1.5", server=DEFAULT, cli=same()),
    row("--mirostat", "2", server=DEFAULT, cli=same()),
    row("--mirostat-lr", "0.2", server=DEFAULT, cli=same()),
    row("--mirostat-ent", "4", server=DEFAULT, cli=same()),
    row("-l --logit-bias", "12+1", server=DEFAULT, cli=same()),
    row("--grammar", 'root::="a"', server=DEFAULT, cli=same()),
    row("--grammar-file", "g.gbnf", server=DEFAULT, cli=same()),
    row("-j --json-schema", "{}", server=DEFAULT, cli=same()),
    row("-jf --json-schema-file", "s.json", server=DEFAULT, cli=same()),
    row("-bs --backend-sampling", "", note("tokens are always sampled on the device")),
)

CLI = (
    row("--server-base", "http://localhost:8080", cli=refused("the command runs the model itself")),
    row("--verbose-prompt", "", cli=note("`satchel tokenize -p TEXT` prints the tokens of a prompt")),
    row("--no-display-prompt", "", cli=note("the prompt is never printed; `satchel complete` does")),
    row("--display-prompt", "", cli=refused("`satchel complete` prints the prompt before its answer")),
    row("-co --color", "[on]", cli=note("colour is used where a terminal shows it; NO_COLOR=1 turns it off")),
    row("-sys --system-prompt", "Brief.", cli=same()),
    row("--show-timings --no-show-timings", "", cli=TIMINGS),
    row("-sysf --system-prompt-file", "system.txt", cli=same()),
    row("-cnv --conversation -no-cnv --no-conversation", "", cli=same("`chat` is always in turns")),
    row("-st --single-turn", "", cli=same()),
    row(
        "-mli --multiline-input",
        cli=note('a message of several lines ends its lines with \\ or stands between """'),
    ),
    row("--image --audio --video", "a.png", cli=PICTURES),
    row(
        "-o --output --output-file", "out.txt", cli=refused("the answer alone is on stdout: > FILE keeps it")
    ),
    row("--simple-io", "", cli=note("output that is no terminal is always plain")),
)

BOTH = (
    row("-ctxcp --ctx-checkpoints --swa-checkpoints", "8", PREFIXES),
    row("-cram --cache-ram", "1024", same("0 is the default: only what memory evicts goes there")),
    row(
        "--context-shift --no-context-shift",
        cli=same(),
        server=DEFAULT,
    ),
    row("-r --reverse-prompt", "User:", cli=same(), server=DEFAULT),
    row(
        "-sp --special", "", refused("control tokens are never printed; /completion lists an answer's tokens")
    ),
    row(
        "--warmup --no-warmup", "", server=same(), cli=note("the first answer makes the plans that it needs")
    ),
    row("-mm --mmproj", "mm.gguf", PICTURES),
    row("-mmu --mmproj-url", "https://example.com/mm.gguf", PICTURES),
    row("--mmproj-auto --no-mmproj --no-mmproj-auto", "", note(f"{TEXT_ALONE}: no projector is loaded")),
    row("--mmproj-offload --no-mmproj-offload", "", note(f"{TEXT_ALONE}: no projector is loaded")),
    row("-mmdev --mmproj-device", "none", note(f"{TEXT_ALONE}: no projector is loaded")),
    row("--image-min-tokens", "8", note(f"{TEXT_ALONE}: no projector is loaded")),
    row("--image-max-tokens", "512", note(f"{TEXT_ALONE}: no projector is loaded")),
    row("--chat-template-kwargs", "{}", server=DEFAULT, cli=same()),
    row("--jinja", "", cli=same(), server=note("templates are always rendered with Jinja")),
    row("--no-jinja", "", refused("templates are always rendered with Jinja")),
    row(
        "--reasoning-format",
        "auto",
        cli=note("thinking is shown apart from the answer; --reasoning off leaves it out"),
        server=DEFAULT,
    ),
    row("-rea --reasoning", "off", cli=same(), server=DEFAULT),
    row("--reasoning-effort", "low", cli=same(), server=DEFAULT),
    row("--reasoning-budget", "0", cli=same(), server=DEFAULT),
    row("--reasoning-budget-message", "Enough.", server=DEFAULT, cli=same()),
    row(
        "--reasoning-preserve --no-reasoning-preserve",
        "",
        refused("the template decides which thoughts it repeats; --chat-template-kwargs sets its variables"),
    ),
    row(
        "--chat-template",
        "chatml",
        same("Jinja text, or a name; rare ones are refused with the list of those that are known"),
    ),
    row("--chat-template-file", "t.jinja"),
    row("--skip-chat-parsing", "", refused("/completion and `satchel complete` give raw text")),
    row("--no-skip-chat-parsing", "", note("answers are parsed as their template is written")),
    row("--log-prompts-dir", "prompts", refused("prompts of clients are kept nowhere")),
)

DRAFTS = (
    row(
        "--spec-draft-hf -hfd -hfrd --hf-repo-draft",
        "user/repo",
        same(PULLED),
    ),
    row("--spec-draft-threads -td --threads-draft", "4", DRAFT_THREADS),
    row("--spec-draft-threads-batch -tbd --threads-batch-draft", "4", DRAFT_THREADS),
    row("--spec-draft-cpu-mask -Cd --cpu-mask-draft", "ff", refused(SYSTEM_PLACES)),
    row("--spec-draft-cpu-range -Crd --cpu-range-draft", "0-7", refused(SYSTEM_PLACES)),
    row("--spec-draft-cpu-strict --cpu-strict-draft", "1", UNPINNED),
    row("--spec-draft-prio --prio-draft", "2", DRAFT_THREADS),
    row("--spec-draft-poll --poll-draft", "1", UNPINNED),
    row("--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft", "ff", refused(SYSTEM_PLACES)),
    row("--spec-draft-cpu-strict-batch --cpu-strict-batch-draft", "1", UNPINNED),
    row("--spec-draft-prio-batch --prio-batch-draft", "2", DRAFT_THREADS),
    row("--spec-draft-poll-batch --poll-batch-draft", "1", UNPINNED),
    row("--spec-draft-override-tensor -otd --override-tensor-draft", "exps=cpu", refused(DRAFT_PLACE)),
    row("--spec-draft-cpu-moe -cmoed --cpu-moe-draft", "", refused(DRAFT_PLACE)),
    row(
        "--spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft",
        "2",
        refused(DRAFT_PLACE),
    ),
    row(
        "--spec-draft-n-max --draft --draft-n --draft-max",
        "8",
        same("needs --lookup or -md"),
    ),
    row(
        "--spec-draft-n-min --draft-min --draft-n-min",
        "1",
        same("needs --lookup or -md"),
    ),
    row("--spec-draft-p-split --draft-p-split", "0.1", DRAFT_LENGTH),
    row("--spec-draft-p-min --draft-p-min", "0.5", DRAFT_LENGTH),
    row(
        "--spec-draft-backend-sampling --no-spec-draft-backend-sampling",
        "",
        note("draft tokens are sampled on the device"),
    ),
    row("--spec-draft-device -devd --device-draft", "cpu", refused(DRAFT_PLACE)),
    row(
        "--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft",
        "99",
        note(DRAFT_PLACE),
    ),
    row("--spec-draft-model -md --model-draft", "draft.gguf"),
    row(
        "--spec-type",
        "ngram-simple",
        refused("--lookup drafts by n-grams of the text, -md FILE by a smaller model"),
    ),
    row("--spec-ngram-mod-n-min", "8", NGRAMS),
    row("--spec-ngram-mod-n-max", "64", NGRAMS),
    row("--spec-ngram-mod-n-match", "24", NGRAMS),
    row("--spec-ngram-simple-size-n", "12", NGRAMS),
    row("--spec-ngram-simple-size-m", "48", NGRAMS),
    row("--spec-ngram-simple-min-hits", "1", NGRAMS),
    row("--spec-ngram-map-k-size-n", "12", NGRAMS),
    row("--spec-ngram-map-k-size-m", "48", NGRAMS),
    row("--spec-ngram-map-k-min-hits", "1", NGRAMS),
    row("--spec-ngram-map-k4v-size-n", "12", NGRAMS),
    row("--spec-ngram-map-k4v-size-m", "48", NGRAMS),
    row("--spec-ngram-map-k4v-min-hits", "1", NGRAMS),
    row("--spec-default", "", refused("--lookup drafts by n-grams of the text, -md FILE by a smaller model")),
    row("--gpt-oss-20b-default", "", refused(_preset("ggml-org/gpt-oss-20b-GGUF"))),
    row("--gpt-oss-120b-default", "", refused(_preset("ggml-org/gpt-oss-120b-GGUF"))),
    row("--vision-gemma-4b-default", "", PICTURES),
    row("--vision-gemma-12b-default", "", PICTURES),
)

SERVER = (
    row(
        "-lcs --lookup-cache-static",
        "c.bin",
        server=refused("no file of n-grams is read; --lookup finds them"),
    ),
    row(
        "-lcd --lookup-cache-dynamic",
        "c.bin",
        server=refused("no file of n-grams is kept; --lookup finds them"),
    ),
    row("--kv-unified-per-slot", "4096", server=refused("-c is the limit of each request")),
    row("-cms --checkpoint-min-step", "8192", server=PREFIXES),
    row("-kvu --kv-unified", server=same("-c tokens in all; --kv-budget gives another size")),
    row("-no-kvu --no-kv-unified", server=same("the default: -c tokens for each slot, which requests share")),
    row("--cache-idle-slots --no-cache-idle-slots", "", server=PREFIXES),
    row(
        "--spm-infill",
        server=refused("/infill writes prefix, suffix, middle; /completion takes any order"),
    ),
    row("--pooling", "mean", server=same("mean, cls, last")),
    row("-cb --cont-batching", "", server=note("requests are always batched from step to step")),
    row("-nocb --no-cont-batching", "", server=refused("-np 1 answers one request at a time")),
    row("--mtmd-batch-max-tokens", "1024", server=PICTURES),
    row("--video-fps", "4", server=PICTURES),
    row("--video-timestamp-interval", "5000", server=PICTURES),
    row("--video-ffmpeg-dir", "bin", server=PICTURES),
    row("-a --alias", "name", server=same()),
    row("--tags", "a,b", server=note("models have no tags")),
    row(
        "--embd-normalize",
        "2",
        server=note("embeddings have the length 1, unless a request's embd_normalize says otherwise"),
    ),
    row("--host", "127.0.0.1", server=same("one address; another than this machine's own needs a key")),
    row("--port", "8080", server=same()),
    row("--reuse-port", "", server=refused("one process serves a port; several go behind a proxy")),
    row("--path", "static", server=refused("the page at / is built in; a proxy serves other files")),
    row("--cors-origins", "http://localhost:3000", server=same("none by default")),
    row("--cors-methods", "GET", server=note("a site of --cors-origins may use the methods of the APIs")),
    row("--cors-headers", "*", server=note("a site of --cors-origins may send the headers of the APIs")),
    row(
        "--cors-credentials --no-cors-credentials",
        "",
        server=note("keys go in a header; there are no cookies"),
    ),
    row("--api-prefix", "/llm", server=refused("a proxy in front adds a prefix")),
    row("--ui-config --webui-config", "{}", server=refused("the page keeps its settings in the browser")),
    row(
        "--ui-config-file --webui-config-file",
        "ui.json",
        server=refused("the page keeps its settings in the browser"),
    ),
    row("--ui-mcp-proxy --webui-mcp-proxy", "", server=TOOLS),
    row("--no-ui-mcp-proxy --no-webui-mcp-proxy", "", server=note("the server is no proxy")),
    row("--tools", "all", server=TOOLS),
    row("--tools-runtime", "docker:image", server=TOOLS),
    row("--mcp-servers-config", "mcp.json", server=TOOLS),
    row("--mcp-servers-json", "{}", server=TOOLS),
    row("-ag --agent", "", server=TOOLS),
    row("-no-ag --no-agent", "", server=note("the server runs no tools")),
    row("--ui --webui --no-ui --no-webui", "", server=same()),
    row(
        "--embedding --embeddings",
        server=note("/v1/embeddings is served for every model that gives embeddings"),
    ),
    row("--rerank --reranking", "", server=note("/v1/rerank is served for every model that ranks")),
    row("--api-key", "secret", server=same("also repeatable")),
    row("--api-key-file", "keys", server=same("a line may give a role and a share")),
    row("--ssl-key-file", "key.pem", server=same()),
    row("--ssl-cert-file", "cert.pem", server=same()),
    row(
        "-to --timeout",
        "600",
        server=note("an answer may take any time; --body-timeout, --write-timeout limit slow clients"),
    ),
    row("--sse-ping-interval", "30", server=same("default: 15")),
    row("--threads-http", "8", server=note("--http-processes has processes write the streams")),
    row("--cache-prompt", "", server=PREFIXES),
    row("--no-cache-prompt", "", server=refused('a request\'s field says it: "cache_prompt": false')),
    row("--cache-reuse", "256", server=PREFIXES),
    row("--metrics", "", server=note("/metrics is always served, where there are keys to admins")),
    row("--props", "", server=refused("properties are set when the server starts; SIGHUP reads them again")),
    row("--slots", "", server=note("/slots is always served")),
    row("--no-slots", "", server=refused("/slots is always served; each key sees its own requests")),
    row("--slot-save-path", "slots", server=same()),
    row("--media-path", "media", server=PICTURES),
    row(
        "--models-dir", "models", server=refused("name them: `satchel serve A.gguf B.gguf`, or [models.NAME]")
    ),
    row(
        "--models-preset",
        "p.ini",
        server=refused("the configuration file has a table [models.NAME] for each"),
    ),
    row("--models-max", "4", server=refused("--models-memory limits the GB of loaded model files")),
    row("--models-autoload", "", server=note("a request for a model always loads it")),
    row("--no-models-autoload", "", server=refused("a request for a model always loads it")),
    row("--prefill-assistant", "", server=note("a last message of the assistant is always continued")),
    row(
        "--no-prefill-assistant",
        server=refused('a request\'s field says it: "continue_final_message": false'),
    ),
    row("-sps --slot-prompt-similarity", "0.5", server=PREFIXES),
    row(
        "--lora-init-without-apply",
        server=refused("--lora-scaled FILE:0 loads an adapter without applying it"),
    ),
    row("--sleep-idle-seconds", "600", server=same("0 and -1: never")),
    row("--spec-synth-len", "2", server=refused("it is for measurements of llama.cpp")),
    row("--spec-synth-rates", "0.5", server=refused("it is for measurements of llama.cpp")),
    row(
        "--spec-draft-sampling", "greedy", server=note("an answer is the same with and without draft tokens")
    ),
    row("--spec-ngram-size-n", "12", server=NGRAMS),
    row("--spec-ngram-size-m", "48", server=NGRAMS),
    row("--spec-ngram-min-hits", "1", server=NGRAMS),
    row("--embd-gemma-default", "", server=refused(_preset("ggml-org/embeddinggemma-300M-qat-q4_0-GGUF"))),
    row("--fim-qwen-1.5b-default", "", server=refused(_preset("ggml-org/Qwen2.5-Coder-1.5B-Q8_0-GGUF"))),
    row("--fim-qwen-3b-default", "", server=refused(_preset("ggml-org/Qwen2.5-Coder-3B-Q8_0-GGUF"))),
    row("--fim-qwen-7b-default", "", server=refused(_preset("ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF"))),
    row("--fim-qwen-7b-spec", "", server=refused(_preset("ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF"))),
    row("--fim-qwen-14b-spec", "", server=refused(_preset("ggml-org/Qwen2.5-Coder-14B-Q8_0-GGUF"))),
    row(
        "--fim-qwen-30b-default",
        server=refused(_preset("ggml-org/Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF")),
    ),
)

# Flags of other versions of llama.cpp, which model cards still show.
OLDER = (
    row("-i --interactive -if --interactive-first", "", cli=note("`satchel chat` is interactive")),
    row("-ins --instruct -cml --chatml", "", cli=note("messages are written with the model's template")),
    row("--prompt-cache", "c.bin", cli=refused("`chat --session NAME` keeps a conversation with its cache")),
    row(
        "--in-prefix --in-suffix",
        "x",
        cli=refused("the model's template writes what stands around a message"),
    ),
    row("--no-penalize-nl --penalize-nl", "", note("a line break is penalized as any token")),
    row("-gqa --gqa", "8", note("the file says it")),
    row("--memory-f32", "", refused("-ctk f32 -ctv f32")),
    row("--license", "", refused("the file LICENSE has it")),
    row("--lookup-ngram-min", "2", NGRAMS),
)

TABLES: tuple[tuple[Row, ...], ...] = (COMMON, SAMPLING, BOTH, DRAFTS, CLI, SERVER)
ROWS = {flag: one for rows in (*TABLES, OLDER) for one in rows for flag in one.flags}
