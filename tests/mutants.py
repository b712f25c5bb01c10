"""Does each test notice the fault it is there for? Break the code as quality.md says, run the tests, expect a failure.

    python -m tests.mutants [name ...]

Every mutant is one edit of one file in a copy of the repository. A mutant that survives is a hole in the tests.
"""

import shutil
import subprocess
import sys
import tempfile
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


MUTANTS = [
    # Solvers converge as they should
    Mutant("one wrong flux sign", "gkn/pde/fd.py", "inner -= flux.diff", "inner += flux.diff", "tests/test_fd.py -k second_order"),
    Mutant("h for h^2", "gkn/pde/fd.py", "face.mul_(0.5 / h**2)", "face.mul_(0.5 / h)", "tests/test_fd.py -k second_order"),
    Mutant("a wrong eigenvalue", "gkn/pde/fd.py", "(2 * (grid.size - 1))) / grid.spacing", "(2 * grid.size)) / grid.spacing", "tests/test_fd.py -k energy"),
    Mutant("harmonic face means", "gkn/pde/fd.py", "face = a_in.narrow(axis, 0, size - 1) + a_in.narrow(axis, 1, size - 1)", "face = 4 / (1 / a_in.narrow(axis, 0, size - 1) + 1 / a_in.narrow(axis, 1, size - 1))", "tests/test_fd.py -k superlu"),
    Mutant("boundary values ignored", "gkn/pde/fd.py", "return u.add_(lifted)", "return u", "tests/test_fd.py -k patch"),
    Mutant("stops too early", "gkn/pde/fd.py", "goal = rz * (tol**2 / contrast)", "goal = rz * (tol / contrast)", "tests/test_fd.py -k energy"),
    Mutant("says nothing when not converged", "gkn/pde/fd.py", "    if active.any():\n        reached", "    if False:\n        reached", "tests/test_fd.py -k beyond_reach"),
    Mutant("batch mixes samples", "gkn/pde/fd.py", "rz / _dot(p, q), 0.0", "rz[:1] / _dot(p, q), 0.0", "tests/test_fd.py -k loop"),
    Mutant("P1 load of half weight", "gkn/pde/fem.py", "return w.f * v", "return w.f * v * 0.5", "tests/test_fem.py -k second_order"),
    Mutant("P1 boundary values ignored", "gkn/pde/fem.py", " - stiffness[inner][:, edge] @ u[i].numpy()[edge]", "", "tests/test_fem.py -k patch"),
    # Without an oracle
    Mutant("shifted coefficient", "gkn/pde/fd.py", "a_in = self._interior(a, but=axis)", "a_in = self._interior(a.roll(1, axis), but=axis)", "tests/test_fd.py -k symmetries"),
    Mutant("shifted coefficient, balance", "gkn/pde/fd.py", "a_in = self._interior(a, but=axis)", "a_in = self._interior(a.roll(1, axis), but=axis)", "tests/test_fd.py -k flows"),
    Mutant("the printed sign of the disk's Green's function", "gkn/pde/green.py", "-(squared / image).log()", "(squared / image).log()", "tests/test_green.py"),
    Mutant("the printed parenthesis", "gkn/pde/green.py", "image = squared + (", "image = squared + 0.1 + (", "tests/test_green.py"),
    Mutant("interval without x y", "gkn/pde/green.py", "/ 2 - x * y", "/ 2", "tests/test_green.py"),
    # The field has its law
    Mutant("a missing sqrt 2", "gkn/fields.py", "math.sqrt(2 / self.field.length)", "math.sqrt(1 / self.field.length)", "tests/test_fields.py -k law"),
    Mutant("alpha for alpha/2", "gkn/fields.py", "** (-self.alpha / 2)", "** (-self.alpha)", "tests/test_fields.py -k law"),
    Mutant("tau for tau^2", "gkn/fields.py", "self.tau**2", "self.tau", "tests/test_fields.py -k law"),
    Mutant("the constant mode kept", "gkn/fields.py", 'if self.boundary != "dirichlet" and not self.constant:', "if False:", "tests/test_fields.py -k law"),
    Mutant("frequencies cut at the grid's own", "gkn/transforms.py", "periods * period - length))\n    return padded.reshape(*c.shape[:-1], periods, period).sum(-2)", "periods * period - length))\n    return padded[..., :period]", "tests/test_fields.py -k resolution"),
    Mutant("sines of k, not k+1", "gkn/fields.py", "values = torch.cat([torch.zeros_like(values.narrow(axis, 0, 1)), values], axis)", "pass", "tests/test_fields.py -k direct"),
    Mutant("smoothing without the quotient rule", "gkn/fields.py", "slope = slope - slope.sum(1, keepdim=True) * kernel", "slope = slope", "tests/test_fields.py -k smooth"),
    Mutant("smoothing without weights", "gkn/fields.py", "* domain.weights.numpy()[j]", "", "tests/test_fields.py -k smooth"),
    # Domains
    Mutant("weights of the trapezoid rule without its ends", "gkn/domain.py", "one[[0, -1]] /= 2", "pass", "tests/test_domain.py"),
    Mutant("inverted cells pass", "gkn/domain.py", "flat = (self.areas <= 0).nonzero()", "flat = (self.areas == 0).nonzero()", "tests/test_domain.py"),
    Mutant("unused points pass", "gkn/domain.py", "if not used.all():", "if False:", "tests/test_domain.py"),
    Mutant("strides that do not divide", "gkn/domain.py", "if k < 1 or (self.size - 1) % k:", "if k < 1:", "tests/test_domain.py"),
    # Corruption is noticed
    Mutant("no hash", "gkn/storage.py", "if sha256(path) != expected:", "if False:", "tests/test_storage.py -k 'flipped or swapped'"),
    Mutant("no seal", "gkn/durable.py", "intact = data ==", "intact = True or data ==", "tests/test_storage.py -k flipped"),
    Mutant("white space not sealed", "gkn/durable.py", 'intact = data == canonical({**sealed, "sha256": seal}) and', "intact =", "tests/test_storage.py -k flipped"),
    Mutant("links followed", "gkn/storage.py", "self._expect(isinstance(link, h5py.HardLink)", "self._expect(True or isinstance(link, h5py.HardLink)", "tests/test_storage.py -k hostile"),
    Mutant("shapes believed", "gkn/storage.py", "self._expect(data.shape == expected", "self._expect(True or data.shape == expected", "tests/test_storage.py -k hostile"),
    # Data generation can be killed
    Mutant("written in place", "gkn/durable.py", 'temporary = path.with_name(f"{path.name}{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}")', "temporary = path", "tests/test_generate.py -k fault"),
    Mutant("listed before it is there", "gkn/storage.py", "    with replacing(path) as temporary:\n        temporary.write_bytes(image)\n", "    with replacing(path) as temporary:\n        temporary.write_bytes(image)\n    path.write_bytes(image[: len(image) // 2])\n    path.write_bytes(image)\n", "tests/test_generate.py -k fault"),
    Mutant("not synced", "gkn/durable.py", "        sync(temporary)\n", "", "tests/test_durable.py"),
    Mutant("leftovers of a full disk", "gkn/durable.py", "        temporary.unlink(missing_ok=True)\n        raise", "        raise", "tests/test_generate.py -k 'fault and disk'"),
    Mutant("a full disk swallowed", "gkn/durable.py", "        temporary.unlink(missing_ok=True)\n        raise", "        temporary.unlink(missing_ok=True)", "tests/test_generate.py -k 'fault and disk'"),
    Mutant("one generator for all samples", "gkn/generate.py", "spawn_key=(sample,)", "spawn_key=(sample // 2,)", "tests/test_generate.py -k checks"),
    Mutant("samples depend on the number of threads", "gkn/generate.py", "    torch.set_num_threads(1)\n", "    pass\n", "tests/test_generate.py -k threads"),
    Mutant("made again instead of resumed", "gkn/generate.py", "if samples.start not in listed", "if True", "tests/test_generate.py -k stopped"),
    Mutant("another dataset overwritten", "gkn/storage.py", "if digest(found.header().json()) != digest(header.json()):", "if False:", "tests/test_storage.py -k another"),
    Mutant("signals unhandled", "gkn/cli.py", "signal.signal(number, _stop)", "pass", "tests/test_generate.py -k stopped"),
    # Loading never runs code; sizes are checked first
    Mutant("weights_only=False", "gkn/importers.py", "weights_only=True", "weights_only=False", "tests/test_importers.py -k hostile"),
    Mutant("pickled arrays", "gkn/importers.py", "allow_pickle=False", "allow_pickle=True", "tests/test_importers.py -k hostile"),
    Mutant("objects in npz", "gkn/importers.py", "if dtype.hasobject:", "if False:", "tests/test_importers.py -k 'hostile and object'"),
    Mutant("claims believed", "gkn/importers.py", "if claimed > free // 2:", "if False:", "tests/test_importers.py -k 'hostile and claiming_mat'"),
    Mutant("external storage read", "gkn/importers.py", "or data.external is not None or data.is_virtual", "", "tests/test_importers.py -k hostile"),
    Mutant("expanded tensors believed", "gkn/importers.py", "if each.numel() * each.element_size() > size:", "if False:", "tests/test_importers.py -k 'hostile and expanding'"),
    Mutant("v7.3 axes as they come", "gkn/importers.py", "data.transpose(*reversed(range(data.ndim)))", "data", "tests/test_importers.py -k v73"),
    # gkn data check
    Mutant("residual not judged", "gkn/check.py", "worst <= limit, text)", "True, text)", "tests/test_check.py"),
    Mutant("duplicates not seen", "gkn/check.py", "if first != i:", "if False:", "tests/test_check.py"),
    Mutant("boundary not judged", "gkn/check.py", "self.edge == 0, text)", "True, text)", "tests/test_check.py"),
    Mutant("smoothed after the stride", "gkn/dataset.py", "return self._view(source=source, inputs=(*self.inputs, *source.added))", "return self._view(source=source, inputs=(*self.inputs, *source.added[::-1]))", "tests/test_dataset.py -k smoothed"),
]  # fmt: skip


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
