import os
import subprocess
import sys

import pytest

from gkn.system.memory import available_memory, check_memory


def test_what_is_free_is_known():
    assert 2**20 < available_memory() < 2**50


def test_what_does_not_fit_is_refused_with_the_number():
    check_memory(2**20, "a little")
    with pytest.raises(MemoryError, match=r"a universe: needs 1.05e\+06 GiB, but .* GiB are free on cpu"):
        check_memory(2**50, "a universe")


KEPT = """
import torch
from gkn.system.memory import keep_freed
keep_freed()
def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))
before = resident()
torch.ones(2**26)
print(resident() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is asked")
@pytest.mark.parametrize(("environment", "kept"), [({}, True), ({"MALLOC_TRIM_THRESHOLD_": "131072"}, False)])
def test_freed_blocks_are_kept_unless_somebody_said_otherwise(environment, kept):
    """256 MiB that were taken and freed: they are still there for who asks next, or they are not."""
    hidden = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    given = {**hidden, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run([sys.executable, "-c", KEPT], env=given, capture_output=True, text=True, check=True)
    assert (int(done.stdout) > 2**17) == kept  # KiB
