"""One network on a grid, on a mesh and on a cloud of points: the pretrained NearFar on a function it has never seen."""

from pathlib import Path

import torch

import gkn
from gkn.data.plot import show_answers

FIELD = gkn.GaussianField(tau=3, alpha=2, boundary="neumann")


def main(out: Path | None = None, size: int = 61, fine: int = 241) -> float:
    operator = gkn.pretrained("darcy-nearfar")
    draw = FIELD.draw(1, torch.Generator().manual_seed(2026))  # a random function, known at any point
    grid = gkn.Grid(fine)
    truth = gkn.solve_darcy(grid, gkn.two_phase(draw(grid)))
    cloud = torch.rand(size**2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    domains = {"grid": gkn.Grid(size), "mesh": gkn.Mesh.square(1 / (size - 1)), "cloud": gkn.Cloud(cloud)}
    rows, errors = [], []
    for name, domain in domains.items():
        a = gkn.two_phase(draw(domain.points))[0]
        u = grid.interpolate(truth.T, domain.points)[:, 0]
        found = operator(operator.sample(domain, a=a))[:, 0].double()
        errors.append(float((found - u).norm() / u.norm()))
        rows.append((f"{name}, {len(domain)} points", domain, a, u, found, found - u))
    if out:
        show_answers(rows, out, f"one NearFar, relative errors {', '.join(f'{error:.4f}' for error in errors)}")
    return max(errors)


if __name__ == "__main__":
    print(f"largest relative error: {main(Path('docs/examples/grid_mesh_cloud.png'), 85, 421):.4f}")
