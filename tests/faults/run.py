"""Runs the fault tables: `python tests/faults/run.py [--short] [--only NAME] [--json]`.

The program restarts itself with the shim preloaded. The processes of a table are forked from one that has
imported everything.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]

SEED = 18


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="a sample of each table, for every change")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="tables whose names begin so"
    )
    parser.add_argument("--seed", type=int, default=SEED, help="of the samples")
    parser.add_argument("--json", action="store_true", help="print each row as a line of JSON")
    parser.add_argument("--list", action="store_true", help="print the names of the tables")
    return parser.parse_args()


def preloaded() -> None:
    """Restarts this program with the shim preloaded."""
    import shim

    if shim.compiler() is None:
        sys.exit("tests/faults needs Linux and a C compiler: there is no cc")
    folder = tempfile.mkdtemp(prefix="satchel-faults-")
    os.environ.pop(
        "PYTHONUNBUFFERED", None
    )  # CPython loses what a short write leaves of an unbuffered stream
    os.environ |= {"FAULTS_FOLDER": folder, "LD_PRELOAD": str(shim.build(Path(folder)))}
    os.environ |= {"SATCHEL_CONFIG": "", "SATCHEL_TUNING": "", "HOME": folder, "OMP_NUM_THREADS": "1"}
    os.environ |= {
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    os.execv(sys.executable, [sys.executable, *sys.argv])


def main() -> int:
    asked = options()
    if "FAULTS_FOLDER" not in os.environ:
        preloaded()
    from tables import names, rows_of

    if asked.list:
        print("\n".join(names(asked.only)))
        return 0
    from points import table

    folder = Path(os.environ["FAULTS_FOLDER"])
    bad = []
    for name in names(asked.only):
        rows = rows_of(name, folder, asked.short, asked.seed)
        bad += [b for row in rows for b in row.bad]
        if asked.json:
            for row in rows:
                print(json.dumps({"table": name, **row.facts()}), flush=True)
        else:
            print(f"\n{name}\n{table(rows)}", flush=True)
    if not asked.json:
        for place, kind, text in bad:
            print(f"\n{kind}: {place}\n{text[-2500:]}")
    return 1 if bad else 0


if __name__ == "__main__":
    code = main()
    import shutil

    shutil.rmtree(os.environ["FAULTS_FOLDER"], ignore_errors=True)
    sys.stdout.flush()
    os._exit(code)
