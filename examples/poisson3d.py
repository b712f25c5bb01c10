"""Make a folder of `.vtu` files: Poisson's equation on a cube of 100 mm, on tetrahedra, with the exact solution at every node.

-Laplace u = f inside, u = 0 on the boundary. f (K/mm^2) is a random sum of products of sines, so that u (K) is known without a
solver. Meshes are unstructured, of about 2000 nodes each; with --nodes they are structured boxes of up to 10^6 nodes. gkn is
not used.

    python examples/poisson3d.py --n 150 --seed 0 --out data/poisson3d
    python examples/poisson3d.py --n 1 --start 150 --nodes 1000000 --out data/poisson3d
"""

import argparse
from itertools import product
from pathlib import Path

import meshlane
import numpy as np
from joblib import Parallel, delayed
from netgen.csg import CSGeometry, OrthoBrick, Pnt
from netgen.meshing import SetMessageImportance
from skfem import MeshTet

SIDE, MODES = 100.0, 3  # mm; sine modes per axis


def unstructured(maxh):
    """Return the points (N, 3) and tetrahedra (C, 4) of a netgen mesh of the cube with edges of about `maxh` mm."""
    SetMessageImportance(0)
    geometry = CSGeometry()
    geometry.Add(OrthoBrick(Pnt(0, 0, 0), Pnt(SIDE, SIDE, SIDE)))
    made = geometry.GenerateMesh(maxh=maxh, grading=0.2)
    points = np.array([point.p for point in made.Points()])
    return points, np.array([[vertex.nr - 1 for vertex in cell.vertices] for cell in made.Elements3D()])


def structured(nodes):
    """Return the points and tetrahedra of a box grid with as close to `nodes` nodes as a near-cubic grid allows."""
    x = max(2, round(nodes ** (1 / 3)))
    y = max(2, round((nodes / x) ** 0.5))
    z = max(2, round(nodes / (x * y)))
    mesh = MeshTet.init_tensor(*(np.linspace(0, SIDE, count) for count in (x, y, z)))
    return mesh.p.T, mesh.t.T


def oriented(points, cells):
    """Return tetrahedra whose volumes are positive, as VTK numbers them."""
    p, q, r, s = (points[corner] for corner in cells.T)
    inverted = np.einsum("ij,ij->i", np.cross(q - p, r - p), s - p) < 0
    return np.where(inverted[:, None], cells[:, [0, 1, 3, 2]], cells)


def exact(points, coefficients):
    """Return f and u at the points, for coefficients (MODES, MODES, MODES) of f."""
    modes = np.arange(1, MODES + 1)
    sines = np.sin(np.pi / SIDE * points[:, :, None] * modes)  # (N, 3, MODES)
    eigenvalues = (np.pi / SIDE) ** 2 * sum(axis**2 for axis in np.meshgrid(modes, modes, modes))
    f, u = np.zeros(len(points)), np.zeros(len(points))
    for i, j, k in product(range(MODES), repeat=3):
        wave = coefficients[i, j, k] * sines[:, 0, i] * sines[:, 1, j] * sines[:, 2, k]
        f += wave
        u += wave / eigenvalues[i, j, k]
    return f, u


def make(folder, seed, index, nodes=None):
    """Write one file, which depends on `seed`, `index` and `nodes` only, and return its path."""
    rng = np.random.default_rng([seed, index])
    coefficients, maxh = rng.normal(0, 0.01, (MODES, MODES, MODES)), rng.uniform(8.5, 9.2)
    points, cells = structured(nodes) if nodes else unstructured(maxh)
    f, u = exact(points, coefficients)
    path = folder / f"poisson3d_{index:04d}.vtu"
    meshlane.write(path, meshlane.Mesh(points, [("tetra", oriented(points, cells))], point_data={"f": f, "u": u}))
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=150, help="number of files")
    parser.add_argument("--start", type=int, default=0, help="number of the first file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, help="nodes of a structured box; unstructured, about 2000, if not given")
    parser.add_argument("--out", type=Path, default=Path("data/poisson3d"), help="folder of the files")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    indices = range(given.start, given.start + given.n)
    Parallel(given.jobs)(delayed(make)(given.out, given.seed, index, given.nodes) for index in indices)


if __name__ == "__main__":
    main()
