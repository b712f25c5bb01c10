"""Predict on a mesh of your own and write a VTU file for ParaView and other programs that read VTK.

Any file with triangles and a field `a` on its nodes will do; here a mesh is made, finer in a corner than elsewhere, and written
first, so that the example runs by itself. The truth to compare with is solved by finite elements on that mesh.
"""

import tempfile
from pathlib import Path

import torch

import gkn
from gkn.data.plot import show_answers
from gkn.data.readers import read_sample
from gkn.data.writers import save


def main(out: Path | None = None) -> float:
    mesh = gkn.Mesh.square(0.05)
    mesh = gkn.Mesh(mesh.points**1.3, mesh.cells)  # small triangles near 0, large ones far from it
    field = gkn.GaussianField(tau=3, alpha=2, boundary="neumann")
    a = gkn.two_phase(field.sample(mesh, 1, torch.Generator().manual_seed(1))[0])

    with tempfile.TemporaryDirectory() as folder:
        mine, answer = Path(folder) / "mine.vtu", Path(folder) / "answer.vtu"
        save(mine, mesh, {"a": a})

        operator = gkn.pretrained("darcy")
        domain, fields = read_sample(mine)
        sample = operator.sample(domain, **fields)  # a smoothed and its gradient are made here
        operator.weighted = True  # neighbours count with the area they stand for
        u = operator(sample)[:, 0].double()
        save(answer, domain, {**fields, "u": u})
        _, again = read_sample(answer)

    truth = gkn.solve_darcy(mesh, a, per="node")
    if out:
        row = (f"{len(mesh)} points", domain, a, truth, again["u"], again["u"] - truth)
        show_answers([row], out, "a mesh the network has never seen")
    weights = domain.weights
    return float(((weights * (again["u"] - truth) ** 2).sum() / (weights * truth**2).sum()).sqrt())


if __name__ == "__main__":
    print(f"relative error against finite elements: {main(Path('docs/examples/mesh_to_vtu.png')):.4f}")
