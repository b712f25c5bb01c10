"""Does each test notice the fault it is there for? Break the code as quality.md says, run the tests, expect a failure.

    python -m tests.mutants [name ...]

Every mutant is one edit of one file in a copy of the repository. A mutant that survives is a hole in the tests.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    tests: str


MUTANTS = [Mutant(**mutant) for mutant in tomllib.loads((ROOT / "tests/mutants.toml").read_text())["mutant"]]


def failures(tests: str, mutant: Mutant | None = None) -> str | None:
    """Run tests in a copy of the repository, broken as asked. What failed, or None."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in ("gkn", "tests"):
            shutil.copytree(ROOT / part, copy / part)
        shutil.copy(ROOT / "pyproject.toml", copy)
        if mutant is not None:
            path = copy / mutant.file
            text = path.read_text()
            if mutant.old not in text:
                raise SystemExit(f"{mutant.name}: the code to change is not there: {mutant.old!r}")
            path.write_text(text.replace(mutant.old, mutant.new))
        command = f"{sys.executable} -m pytest -q -x -p no:xdist -p no:cacheprovider {tests} -m 'not slow and not gpu'"
        done = subprocess.run(command, shell=True, cwd=copy, capture_output=True, text=True, timeout=900)
        return None if done.returncode == 0 else done.stdout + done.stderr


def survives(mutant: Mutant) -> bool:
    """Only a test that fails counts: an error in its set-up would also come without the mutant."""
    return re.search(r"^\d+ failed|[, ]\d+ failed", failures(mutant.tests, mutant) or "", re.MULTILINE) is None


def main() -> None:
    wanted = [mutant for mutant in MUTANTS if not sys.argv[1:] or mutant.name in sys.argv[1:]]
    with ThreadPoolExecutor(2) as pool:
        suites = sorted({mutant.tests for mutant in wanted})
        for tests, bad in zip(suites, pool.map(failures, suites), strict=True):
            if bad:
                raise SystemExit(f"{tests} fails without any mutant:\n{bad}")
        print(f"{len(suites)} suites pass as the code is", flush=True)
        alive = 0
        for mutant, survived in zip(wanted, pool.map(survives, wanted), strict=True):
            alive += survived
            print(f"{'SURVIVED' if survived else 'killed  '}  {mutant.name}", flush=True)
    print(f"{len(wanted) - alive} of {len(wanted)} mutants killed")
    sys.exit(alive > 0)


if __name__ == "__main__":
    main()
