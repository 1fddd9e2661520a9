"""Values of options, which the command line imports at startup without the engine."""

PRECISIONS = ("exact", "fast")
WORKERS = ("thread", "process")
POLICIES = ("error", "shift", "truncate-middle")  # of GenerateOptions.on_overflow
MAX_COMPLETIONS = 128  # answers to one prompt
