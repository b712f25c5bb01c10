"""Make a folder of `.vtu` files: plates with a hole under tension, as an engineer's own finite element code would.

Each plate is 200 x 100 mm, in plane stress, with a random elliptical hole and a smooth random Young's modulus E (MPa). The left
edge is clamped, the right edge is pulled by a random traction (MPa), the other edges are free. A file holds E, the displacement
(mm) and the von Mises stress (MPa) at the nodes of a triangle mesh (mm), and the traction as field data. The stress is infinite
at the two clamped corners, where its values depend on the mesh. `gkn data make plate` makes a dataset of the same plates.

    python examples/plate.py --n 48 --seed 0 --out data/plates
"""

import argparse
import csv
from pathlib import Path

from joblib import Parallel, delayed

import gkn


def make_plate(folder, seed, index):
    """Solve and write one plate, which depends on `seed` and `index` only, and return its row of parameters.csv."""
    mesh, fields = gkn.Plate().sample(seed, index)
    traction = float(fields.pop("traction"))
    path = folder / f"plate_{index:04d}.vtu"
    gkn.save(path, mesh, fields, parameters={"traction": traction})
    return path.name, f"{traction:.17g}"


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
