"""Small meshes of all kinds of cells, with known measures."""

import itertools

import numpy as np
import torch

from gkn import Grid, Mesh
from gkn.geometry.cells import TYPES


def box(kind, size=3, dim=None, seed=0, jitter=0.2, low=0.0, high=1.0):
    """Mesh of the unit interval, square or cube by cells of one type; inner nodes are moved at random."""
    linear = {"line3": "line", "triangle6": "triangle", "triangle7": "triangle", "quad8": "quad", "quad9": "quad"}
    linear |= {"tetra10": "tetra", "hexahedron20": "hexahedron", "hexahedron27": "hexahedron"}
    linear |= {"wedge15": "wedge", "pyramid13": "pyramid"}
    base = linear.get(kind, kind)
    dim = TYPES[base].dim
    grid = Grid(size + 1, dim)
    points = grid.points.numpy().copy()
    inner = ~grid.boundary.numpy()
    points[inner] += jitter / size * (np.random.default_rng(seed).random((int(inner.sum()), dim)) - 0.5)
    cells = grid.cell_blocks()[0][1]
    points, cells = split(base, points, cells)
    if base != kind:
        points, cells = with_middles(kind, points, cells)
    return Mesh(points * (high - low) + low, {kind: cells})


def split(base, points, cells):
    if base == "triangle":
        return points, np.concatenate([cells[:, [0, 1, 2]], cells[:, [0, 2, 3]]])
    if base == "tetra":
        tets = [(0, 1, 2, 6), (0, 2, 3, 6), (0, 3, 7, 6), (0, 7, 4, 6), (0, 4, 5, 6), (0, 5, 1, 6)]
        return points, np.concatenate([cells[:, tet] for tet in tets])
    if base == "wedge":
        return points, np.concatenate([cells[:, [0, 1, 2, 4, 5, 6]], cells[:, [0, 2, 3, 4, 6, 7]]])
    if base == "pyramid":
        centres = len(points) + np.arange(len(cells))
        faces = TYPES["hexahedron"].facets
        made = [np.concatenate([cells[:, face[::-1]], centres[:, None]], 1) for face in faces]
        return np.concatenate([points, points[cells].mean(1)]), np.concatenate(made)
    return points, cells


def with_middles(kind, points, cells):
    """Add the nodes between vertices; nodes of neighbours that coincide are one."""
    nodes = TYPES[kind].nodes
    place, extra, columns = {}, [], []
    for row in cells:
        full = list(row)
        for node in nodes[cells.shape[1] :]:
            key = tuple(sorted(row[list(node)]))
            if key not in place:
                place[key] = len(points) + len(extra)
                extra.append(points[list(key)].mean(0))
            full.append(place[key])
        columns.append(full)
    return np.concatenate([points, np.array(extra)]), np.array(columns)


def mixed():
    """Mesh of [0, 2] x [0, 1]: quads on the left, triangles on the right."""
    points = torch.tensor(list(itertools.product((0.0, 0.5, 1.0, 1.5, 2.0), (0.0, 0.5, 1.0))), dtype=torch.float64)
    quads = [[3 * i + j, 3 * i + 3 + j, 3 * i + 4 + j, 3 * i + 1 + j] for i in (0, 1) for j in (0, 1)]
    right = [[3 * i + j, 3 * i + 3 + j, 3 * i + 4 + j, 3 * i + 1 + j] for i in (2, 3) for j in (0, 1)]
    triangles = [t for a, b, c, d in right for t in ([a, b, c], [a, d, c])]
    return Mesh(points, {"quad": quads, "triangle": triangles})


def solids():
    """A hexahedron with a pyramid on top and a wedge at the side: measures 1, 1/3 and 1/2."""
    cube = Grid(2, 3).cell_blocks()[0][1]
    points = np.concatenate([Grid(2, 3).points.numpy(), [[0.5, 0.5, 2.0], [2.0, 0.0, 0.0], [2.0, 1.0, 0.0]]])
    index = {tuple(x): i for i, x in enumerate(points.tolist())}
    at = [index[x] for x in ((0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 1, 1), (0.5, 0.5, 2.0))]
    side = [index[x] for x in ((1, 0, 0), (2, 0, 0), (1, 0, 1), (1, 1, 0), (2, 1, 0), (1, 1, 1))]
    return Mesh(points, {"hexahedron": cube, "pyramid": [at], "wedge": [side]})


def sphere(levels=3, kind="triangle"):
    """The unit sphere, from an octahedron."""
    points = np.array([[1.0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]])
    cells = np.array([[i, j, k] for i in (0, 1) for j in (2, 3) for k in (4, 5)])
    for _ in range(levels):
        six, rows = with_middles("triangle6", points, cells)
        points = six / np.linalg.norm(six, axis=1, keepdims=True)
        cells = np.concatenate([rows[:, corners] for corners in ([0, 3, 5], [1, 4, 3], [2, 5, 4], [3, 4, 5])])
    return Mesh(points, cells)


def ball(levels=3, layers=4):
    """The unit ball, by wedges between spheres and tetrahedra in the middle."""
    shell = sphere(levels)
    points, cells = shell.points.numpy(), shell.cells.numpy()
    K = len(points)
    radii = np.arange(1, layers + 1) / layers
    nodes = np.concatenate([*(points * r for r in radii), np.zeros((1, 3))])
    wedges = np.concatenate([np.concatenate([cells + i * K, cells + (i + 1) * K], 1) for i in range(layers - 1)])
    tets = np.concatenate([cells, np.full((len(cells), 1), layers * K)], 1)
    return Mesh(nodes, {"wedge": wedges, "tetra": tets})
