"""How long a fuzzer runs: for a number of inputs, which a fixed seed makes the same in every run, so that a
verdict does not depend on chance or on the machine's speed; or for some seconds, with inputs of chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SEED = 1


@dataclass(frozen=True)
class Length:
    """amount: seconds, or inputs where counted."""

    amount: int
    counted: bool

    @classmethod
    def parse(cls, text: str) -> Length:
        """30: seconds; 2000x: inputs. ValueError for other texts."""
        amount = text.removesuffix("x")
        return cls(int(amount), amount != text)

    def arguments(self, folder: Path, seeds: Path) -> list[str]:
        """libFuzzer's arguments, beginning from the files of seeds; what it finds goes to folder, which it
        reads too. Counted inputs want an empty folder and a fixed PYTHONHASHSEED; where threads take turns,
        as in the server, their order still differs from run to run.
        """
        if not self.counted:
            return [f"-max_total_time={self.amount}", str(folder), str(seeds)]
        # A list, because a file system gives the files of a folder in an order of its own.
        files = ",".join(sorted(str(path) for path in seeds.iterdir()))
        listed = folder.parent / f"{folder.name}.seeds"
        listed.write_text(files, encoding="utf-8")
        return [f"-runs={self.amount}", f"-seed={SEED}", f"-seed_inputs=@{listed}", str(folder)]
