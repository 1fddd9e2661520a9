"""Words that options take, apart from them: the command line reads these at its start, and little else."""

PRECISIONS = ("exact", "fast")
WORKERS = ("thread", "process")
POLICIES = ("error", "shift", "truncate-middle")  # of GenerateOptions.on_overflow
