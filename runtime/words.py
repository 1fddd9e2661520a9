"""Values of options, in a module of their own because the command line imports them at startup."""

PRECISIONS = ("exact", "fast")
WORKERS = ("thread", "process")
POLICIES = ("error", "shift", "truncate-middle")  # of GenerateOptions.on_overflow
