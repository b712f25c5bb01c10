"""Make a folder of `.vtu` files: plates with a hole under tension, as an engineer's own finite element code would.

Each plate is 200 x 100 mm, in plane stress, with a random elliptical hole and a smooth random Young's modulus E (MPa). The left
edge is clamped, the right edge is pulled by a random traction (MPa), the other edges are free. A file holds E, the displacement
(mm) and the von Mises stress (MPa) at the nodes of a triangle mesh (mm), and the traction as field data. The stress is infinite
at the two clamped corners, where its values depend on the mesh. gkn is not used.

    python examples/plate.py --n 48 --seed 0 --out data/plates
"""

import argparse
import csv
from pathlib import Path

import numpy as np
from joblib import Parallel, delayed
from netgen.geom2d import SplineGeometry
from netgen.meshing import SetMessageImportance
from skfem import Basis, BilinearForm, ElementTriP1, ElementTriP2, ElementVector, LinearForm, MeshTri, condense, solve
from skfem.helpers import ddot, eye, sym_grad, trace

WIDTH, HEIGHT, MARGIN = 200.0, 100.0, 8.0  # mm; MARGIN is the least distance between the hole and an edge
STEEL, NU = 210_000.0, 0.3  # Young's modulus in MPa, Poisson's ratio
CLAMPED = {"left": ["u^1", "u^2"]}  # components of the displacement that are zero on an edge


def ellipse(x, y, a, b, angle, corners=48):
    """Return points (corners, 2) on an ellipse, counter-clockwise, which are close to each other where it is curved."""
    t = np.linspace(0, 2 * np.pi, corners, endpoint=False)
    c, s = np.cos(angle), np.sin(angle)
    return np.stack([x + a * c * np.cos(t) - b * s * np.sin(t), y + a * s * np.cos(t) + b * c * np.sin(t)], axis=1)


def mesh_plate(hole=None, width=WIDTH, height=HEIGHT, maxh=6.0, grading=0.2):
    """Mesh a rectangle without the polygon `hole`, given by its corners counter-clockwise."""
    SetMessageImportance(0)
    geometry = SplineGeometry()
    corners = [(0, 0), (width, 0), (width, height), (0, height)]
    for outline, left, right in [(corners, 1, 0)] + ([] if hole is None else [(hole, 0, 1)]):  # the plate is domain 1
        ids = [geometry.AppendPoint(*corner) for corner in outline]
        for i, j in zip(ids, ids[1:] + ids[:1], strict=True):
            geometry.Append(["line", i, j], leftdomain=left, rightdomain=right)
    made = geometry.GenerateMesh(maxh=maxh, grading=grading)
    points = np.array([point.p[:2] for point in made.Points()]).T
    cells = np.array([[vertex.nr - 1 for vertex in cell.vertices] for cell in made.Elements2D()]).T
    edges = {"left": (0, 0), "right": (0, width), "bottom": (1, 0), "top": (1, height)}
    tests = {name: lambda x, i=i, at=at: np.isclose(x[i], at) for name, (i, at) in edges.items()}
    return MeshTri(np.ascontiguousarray(points), np.ascontiguousarray(cells)).with_boundaries(tests)


def solve_plate(mesh, modulus, traction, supports=CLAMPED):
    """Return the displacement (nodes, 2) in mm and the von Mises stress (nodes,) in MPa.

    `modulus` maps coordinates (2, ...) to Young's modulus. Quadratic elements; stresses are L2-projected to linear ones.
    """

    def stress(strain, e):
        return e / (1 + NU) * strain + eye(e * NU / (1 - NU**2) * trace(strain), 2)

    @BilinearForm
    def stiffness(u, v, w):
        return ddot(stress(sym_grad(u), modulus(w.x)), sym_grad(v))

    @LinearForm
    def load(v, w):
        return traction * v[0]

    basis = Basis(mesh, ElementVector(ElementTriP2()))
    fixed = np.unique(np.concatenate([basis.get_dofs(edge).all(components) for edge, components in supports.items()]))
    u = solve(*condense(stiffness.assemble(basis), load.assemble(basis.boundary("right")), D=fixed))
    sigma = stress(sym_grad(basis.interpolate(u)), modulus(basis.global_coordinates()))
    linear = basis.with_element(ElementTriP1())
    xx, yy, xy = (linear.project(sigma[i, j]) for i, j in ((0, 0), (1, 1), (0, 1)))
    return u[basis.nodal_dofs].T, np.sqrt(xx**2 - xx * yy + yy**2 + 3 * xy**2)


def sample_plate(seed, index):
    """Return the mesh, Young's modulus as a function, and the traction of plate number `index`."""
    rng = np.random.default_rng([seed, index])
    a, b = rng.uniform(8, 25, 2)
    angle = rng.uniform(0, np.pi)
    half = np.hypot([a * np.cos(angle), a * np.sin(angle)], [b * np.sin(angle), b * np.cos(angle)])  # of the bounding box
    x, y = rng.uniform(half + MARGIN, np.array([WIDTH, HEIGHT]) - half - MARGIN)
    waves, phases = rng.uniform(-2 * np.pi / 80, 2 * np.pi / 80, (4, 2)), rng.uniform(0, 2 * np.pi, 4)
    weights = rng.dirichlet(np.ones(4))  # they sum to 1, so that E lies between 1/2 and 2 times that of steel

    def modulus(x):
        cosines = (w * np.cos(k[0] * x[0] + k[1] * x[1] + p) for w, k, p in zip(weights, waves, phases, strict=True))
        return STEEL * 2.0 ** sum(cosines)

    return mesh_plate(ellipse(x, y, a, b, angle)), modulus, rng.uniform(50, 150)


def write_vtu(path, points, triangles, point_data, field_data):
    """Write an ASCII VTU file with field data, which meshlane reads but does not write."""

    def array(values, **attributes):
        values = np.asarray(values)
        kind, digits = ("Int64", "%d") if values.dtype.kind == "i" else ("Float64", "%.12g")
        attributes |= {"NumberOfComponents": values.shape[1]} if values.ndim == 2 else {}
        names = "".join(f' {key}="{value}"' for key, value in attributes.items())
        text = " ".join(digits % value for value in values.flat)
        return f'<DataArray type="{kind}"{names} format="ascii">{text}</DataArray>\n'

    count = len(triangles)
    cells = {"connectivity": triangles.ravel(), "offsets": 3 * np.arange(1, count + 1), "types": np.full(count, 5)}
    path.write_text(
        '<?xml version="1.0"?>\n<VTKFile type="UnstructuredGrid" version="0.1" byte_order="LittleEndian">\n<UnstructuredGrid>\n'
        f"<FieldData>\n{''.join(array([v], Name=k, NumberOfTuples=1) for k, v in field_data.items())}</FieldData>\n"
        f'<Piece NumberOfPoints="{len(points)}" NumberOfCells="{count}">\n'
        f"<Points>\n{array(points, Name='Points')}</Points>\n"
        f"<Cells>\n{''.join(array(v, Name=k) for k, v in cells.items())}</Cells>\n"
        f"<PointData>\n{''.join(array(v, Name=k) for k, v in point_data.items())}</PointData>\n"
        "</Piece>\n</UnstructuredGrid>\n</VTKFile>\n"
    )


def make_plate(folder, seed, index):
    """Solve and write one plate, which depends on `seed` and `index` only, and return its row of parameters.csv."""
    mesh, modulus, traction = sample_plate(seed, index)
    displacement, von_mises = solve_plate(mesh, modulus, traction)
    x, y = mesh.p[:, mesh.t]
    clockwise = (x[1] - x[0]) * (y[2] - y[0]) < (x[2] - x[0]) * (y[1] - y[0])
    triangles = np.where(clockwise, mesh.t[[0, 2, 1]], mesh.t).T  # counter-clockwise, as VTK numbers them
    flat = np.zeros((mesh.nvertices, 1))
    fields = {"E": modulus(mesh.p), "displacement": np.hstack([displacement, flat]), "von_mises": von_mises}
    path = folder / f"plate_{index:04d}.vtu"
    write_vtu(path, np.hstack([mesh.p.T, flat]), triangles, fields, {"traction": traction})
    return path.name, f"{traction:.12g}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=48, help="number of plates")
    parser.add_argument("--start", type=int, default=0, help="number of the first plate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("data/plates"), help="folder of the files")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    indices = range(given.start, given.start + given.n)
    made = Parallel(given.jobs)(delayed(make_plate)(given.out, given.seed, index) for index in indices)
    table = given.out / "parameters.csv"
    rows = dict(list(csv.reader(table.open()))[1:]) if table.exists() else {}  # of an earlier call with another --start
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("file", "traction"), *sorted({**rows, **dict(made)}.items())])


if __name__ == "__main__":
    main()
