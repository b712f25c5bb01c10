"""The finite-difference system as a sparse matrix, written out edge by edge: the oracle of the matrix-free solver."""

import numpy as np
import scipy.sparse as sparse
from scipy.sparse.linalg import splu


def system(size, dim, a):
    """A (K x K) of -div(a grad) without boundary conditions, a (K,) array; row i belongs to node i."""
    index = np.arange(size**dim).reshape((size,) * dim)
    rows, columns, entries = [], [], []
    for axis in range(dim):
        i = np.take(index, np.arange(size - 1), axis).ravel()
        j = np.take(index, np.arange(1, size), axis).ravel()
        weight = (a[i] + a[j]) / 2 * (size - 1) ** 2
        for p, q in ((i, j), (j, i)):
            rows += [p, p]
            columns += [p, q]
            entries += [weight, -weight]
    shape = (size**dim,) * 2
    return sparse.csr_matrix((np.concatenate(entries), (np.concatenate(rows), np.concatenate(columns))), shape=shape)


def solve(grid, a, f, g, **options):
    """By SuperLU."""
    matrix = system(grid.size, grid.dim, a.numpy())
    inner, edge = ~grid.boundary.numpy(), grid.boundary.numpy()
    u = g.numpy().copy()
    right = f.numpy()[inner] - matrix[inner][:, edge] @ u[edge]
    u[inner] = splu(matrix[inner][:, inner].tocsc(), **{"permc_spec": "MMD_AT_PLUS_A", **options}).solve(right)
    return u
