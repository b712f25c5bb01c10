"""Draws of a field whose signs are known at nodes, against fields that are drawn until they have these signs."""

import json
import math

import numpy as np
import pytest
import torch

from gkn import GaussianField, Grid, solve_darcy, stream, two_phase
from gkn.data.problems import Darcy
from gkn.geometry.fields import Series
from gkn.study.beyond import information
from gkn.study.beyond.information import Nodes, chain, known, measure, spread_of, spreads, trajectory
from gkn.study.beyond.tables import SCALES
from gkn.study.work import Place


def field(modes=5):
    return GaussianField(3.0, 2.0, modes=modes)


def moments(x):
    """Means and second moments of the columns of x, side by side, as a list of rows to be averaged."""
    pairs = np.einsum("ni,nj->nij", x, x).reshape(len(x), -1)
    return np.concatenate([x, pairs], 1)


def check_means(one, other, batches=40):
    """Means agree within 5 standard errors, those of a chain from the means of batches."""
    parts = [np.stack([part.mean(0) for part in np.array_split(rows, batches)]) for rows in (one, other)]
    error = np.sqrt(sum(means.var(0, ddof=1) for means in parts) / batches)
    deviation = np.abs(one.mean(0) - other.mean(0)) / error
    assert deviation.max() < 5, deviation


@pytest.mark.parametrize(("modes", "size"), [(5, 3), (24, 5), (3, 9)], ids=["few", "many", "fewer than nodes"])
def test_values_at_nodes(modes, size, rng):
    """Those of the series itself; their covariance, by definition; and functions between nodes do not change them."""
    law = field(modes)
    nodes, series = Nodes(law, size), law.draw(1, rng)
    xi = nodes.xi(series.coefficients[0].numpy())
    z = series(Grid(size)).reshape(size, size).numpy()
    np.testing.assert_allclose(nodes.values(xi), z, atol=1e-14)
    basis = np.stack([nodes.values(e.reshape(size, size)).ravel() for e in np.eye(size**2)])
    for node in ((0, 0), (1, 2), (size - 1, 1)):
        whole = (basis.T @ basis)[node[0] * size + node[1]].reshape(size, size)
        np.testing.assert_allclose(nodes.covariance(*node), whole, atol=1e-15)
    a = np.random.default_rng(0).standard_normal((2, size, size))
    assert (nodes.values(a[0]) * a[1]).sum() == pytest.approx((nodes.transposed(a[1]) * a[0]).sum())
    other = nodes.function(xi, rng)
    np.testing.assert_allclose(other(Grid(size)).reshape(size, size).numpy(), z, atol=1e-13)
    changes = float((other(Grid(4 * size - 3)) - series(Grid(4 * size - 3))).abs().max())
    assert changes > 0.01 if modes > size else changes < 1e-13


@pytest.mark.parametrize("time", [0.4, math.pi / 2, 5.0])
def test_trajectories_keep_the_law(time):
    """A draw of the field, moved under the condition of its own signs, is again a draw of the field; and signs are kept."""
    law, rng = field(), stream(0)
    nodes = Nodes(law, 4)
    rows, ends = [], []
    for series in law.draw(3000, rng).coefficients.numpy():
        xi, count = trajectory(nodes, start := nodes.xi(series), time, rng)
        assert (np.sign(nodes.values(xi)) == np.sign(nodes.values(start))).all()
        rows.append(xi.ravel())
        ends.append(count)
    whole = nodes.deviations.ravel() > 0
    x = np.stack(rows)[:, whole]
    products = moments(x)
    exact = np.concatenate([np.zeros(x.shape[1]), np.eye(x.shape[1]).ravel()])
    deviation = np.abs(products.mean(0) - exact) / (products.std(0) / math.sqrt(len(x)))
    assert deviation.max() < 5
    assert np.mean(ends) > 2 * time


@pytest.mark.parametrize("steps", [(math.pi / 2,), (0.3, 0.3)])
def test_draws_are_those_of_rejection(steps):
    """Means and covariances at 3 x 3 nodes and at points between them, for a field whose signs differ from node to node."""
    law, rng = field(), stream(3)
    nodes, at = Nodes(law, 3), torch.tensor([[0.2, 0.1], [0.3, 0.6], [0.9, 0.45]], dtype=torch.float64)
    mixed = next(s for s in law.draw(50, rng).coefficients if 3 <= int((Series(law, s[None])(Grid(3)) > 0).sum()) <= 6)
    own = Series(law, mixed[None])
    signs = own(Grid(3)) > 0
    free = law.draw(300_000, rng)
    right = (free(Grid(3)) > 0).eq(signs).all(1)
    accepted = Series(law, free.coefficients[right])
    expected = torch.cat([accepted(Grid(3)), accepted(at)], 1).numpy()
    assert len(expected) > 1000
    states = chain(nodes, nodes.xi(mixed.numpy()), steps, rng)
    drawn = Series(law, torch.cat([nodes.function(next(states)[0], rng).coefficients for _ in range(4000)]))
    check_means(moments(torch.cat([drawn(Grid(3)), drawn(at)], 1).numpy()), moments(expected))


def test_spread():
    """Of independent normal vectors, of which the truth is one: errors 1, distances sqrt 2."""
    u = torch.cat([torch.full((401, 1), 100.0), torch.randn(401, 500, generator=stream(0)) / math.sqrt(500)], 1).double()
    spread = spread_of(u[1:], u[0])
    assert 100 * spread.error == pytest.approx(1, rel=0.01)
    assert 100 * spread.apart == pytest.approx(math.sqrt(2), rel=0.01)
    assert 100 * spread.truth == pytest.approx(1, rel=0.1)
    assert max(map(abs, spread.correlation)) < 0.02
    few = [spread_of(u[i : i + 3], u[i + 3]) for i in range(0, 400, 4)]  # the mean of three is corrected for
    assert 100 * np.mean([each.error for each in few]) == pytest.approx(1, rel=0.01)
    assert 100 * np.mean([each.truth for each in few]) == pytest.approx(1, rel=0.01)
    still = spread_of(u[[1, 1, 1, 1, 2, 2, 2, 2]], u[0])
    assert still.correlation[0] == pytest.approx(5 / 7)


def test_solutions_of_a_sample():
    """All share the coefficient of the sample at the known nodes; fewer of them leave more open, and values less than signs."""
    problem = Darcy(size=33)
    found = {stride: spreads(problem, stride, 0, 12) for stride in (1, 2, 8)}
    for stride in (2, 8):
        known_values = found[stride].pop("values at the nodes")
        assert known_values.error < min(each.error for each in found[stride].values())
    errors = {stride: np.mean([each.error for each in found[stride].values()]) for stride in (2, 8)}
    assert errors[8] > 2 * errors[2] > 0
    assert all(each.error < 1e-9 and each.truth < 1e-9 for each in found[1].values())  # all nodes are known
    own = problem.draw(1, range(1), "cpu")
    u = solve_darcy(Grid(33), two_phase(own(Grid(33))))[:, Grid(33).stride(2)]
    torch.testing.assert_close(information.solved([own], problem, 2), u)


def test_measured_once(tmp_path):
    place, said = Place(tmp_path, tmp_path, command="gkn beyond information"), []
    measure(SCALES["smoke"], place, lambda *given: said.append(given))
    found = json.loads((tmp_path / information.FILE).read_text())
    assert found == known(tmp_path, SCALES["smoke"])
    assert known(tmp_path, SCALES["full"]) is None
    assert (found["known"], found["size"], found["functions"], found["command"]) == (21, 41, 2, place.command)
    assert {"machine", "versions", "commit"} <= {*found}
    rows = found["left open"]
    assert [*rows] == sorted([*information.CHAINS, "values at the nodes"])
    assert all(len(row["functions"]["error"]) == 2 and row["quantiles"]["0.1"] <= row["error"] for row in rows.values())
    assert len(said) == 2
    measure(SCALES["smoke"], place, lambda *given: said.append(given))
    assert len(said) == 2


def test_fields_that_are_refused():
    with pytest.raises(ValueError, match="needed a field of cosines"):
        Nodes(GaussianField(3.0, 2.0, "periodic", modes=4), 3)
    with pytest.raises(ValueError, match=r"size=1\): needed at least 2"):
        Nodes(field(), 1)
