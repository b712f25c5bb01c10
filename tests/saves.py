"""Processes that save operators into one folder at the same time: python -m tests.saves FOLDER SEED ROUNDS."""

import os
import subprocess
import sys
from pathlib import Path

import torch

from gkn.graph.rules import Radius
from gkn.models import GKN
from gkn.operator.operator import Operator


def operator_of(seed: int) -> Operator:
    torch.manual_seed(seed)
    return Operator(GKN(dim=2, width=4, kernel=(4,)), Radius(0.3), about={"seed": seed})


def start(folder: Path, seed: int, rounds: int, **environment: str) -> subprocess.Popen[str]:
    """Start a process that saves once for each line it reads and prints a line after each save."""
    command = [sys.executable, "-m", "tests.saves", str(folder), str(seed), str(rounds)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes, env={**os.environ, **environment})


def main(folder: str, seed: int, rounds: int) -> None:
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
    operators = [operator_of(seed), operator_of(seed + 100)]
    print("ready", flush=True)
    for i in range(rounds):
        sys.stdin.readline()
        try:
            operators[i % 2].save(folder)
            print("saved", flush=True)
        except Exception as error:
            print(f"failed: {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
