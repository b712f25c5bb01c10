"""Check that tests notice faults: break the code in many ways, run the tests, and expect a failure.

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


def run(tests: str, mutant: Mutant | None = None) -> tuple[int, str]:
    """Run tests in a copy of the repository with one mutant; return the exit code and the output of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in ("gkn", "tests", "docs"):
            shutil.copytree(ROOT / part, copy / part)
        shutil.copy(ROOT / "pyproject.toml", copy)
        if mutant is not None:
            path = copy / mutant.file
            text = path.read_text()
            if mutant.old not in text:
                return -1, f"the code to change is not there: {mutant.old!r}"
            path.write_text(text.replace(mutant.old, mutant.new))
        command = f"{sys.executable} -m pytest -q -x -p no:xdist -p no:cacheprovider {tests} -m 'not slow and not gpu'"
        done = subprocess.run(command, shell=True, cwd=copy, capture_output=True, text=True, timeout=900)
        return done.returncode, done.stdout + done.stderr


def main() -> None:
    unknown = {*sys.argv[1:]} - {mutant.name for mutant in MUTANTS}
    if unknown:
        raise SystemExit(f"no mutant {', '.join(sorted(unknown))}")
    wanted = [mutant for mutant in MUTANTS if not sys.argv[1:] or mutant.name in sys.argv[1:]]
    with ThreadPoolExecutor(2) as pool:
        suites = sorted({mutant.tests for mutant in wanted})
        for tests, (code, said) in zip(suites, pool.map(run, suites), strict=True):
            if code:
                raise SystemExit(f"{tests} fails without any mutant:\n{said}")
        print(f"{len(suites)} suites pass as the code is", flush=True)
        killed = 0
        for mutant, (code, said) in zip(wanted, pool.map(lambda each: run(each.tests, each), wanted), strict=True):
            killed += code == 1  # tests ran and failed; any other code says that they did not run
            print({0: "SURVIVED", 1: "killed  "}.get(code, f"BROKEN {said}"), mutant.name, flush=True)
    print(f"{killed} of {len(wanted)} mutants killed")
    sys.exit(killed < len(wanted))


if __name__ == "__main__":
    main()
