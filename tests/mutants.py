"""Does each test notice the fault it is there for? Break the code as quality.md says, run the tests, expect a failure.

    python -m tests.mutants [name ...]

Every mutant is one edit of one file in a copy of the repository. A mutant that survives is a hole in the tests.
"""

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


def survives(mutant: Mutant) -> bool | str:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in ("gkn", "tests", "pyproject.toml"):
            source = ROOT / part
            shutil.copytree(source, copy / part) if source.is_dir() else shutil.copy(source, copy / part)
        path = copy / mutant.file
        text = path.read_text()
        if text.count(mutant.old) < 1:
            return f"the code to change is not there: {mutant.old!r}"
        path.write_text(text.replace(mutant.old, mutant.new))
        command = f"{sys.executable} -m pytest -q -x -p no:xdist -p no:cacheprovider {mutant.tests} -m 'not slow and not gpu'"
        done = subprocess.run(command, shell=True, cwd=copy, capture_output=True, text=True, timeout=900)
        if done.returncode == 0:
            return True
        return False if " failed" in done.stdout or " error" in done.stdout else done.stdout + done.stderr


def main() -> None:
    wanted = [mutant for mutant in MUTANTS if not sys.argv[1:] or mutant.name in sys.argv[1:]]
    bad = 0
    with ThreadPoolExecutor(2) as pool:
        for mutant, alive in zip(wanted, pool.map(survives, wanted), strict=True):
            print(f"{'killed  ' if alive is False else 'SURVIVED' if alive is True else 'BROKEN  '}  {mutant.name}", flush=True)
            if alive is not False:
                bad += 1
                print("" if alive is True else f"          {alive}", flush=True)
    print(f"{len(wanted) - bad} of {len(wanted)} mutants killed")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
