import numpy as np
import pytest
import torch

from gkn import Cloud, Grid, Mesh
from gkn.geometry.domain import Domain
from gkn.geometry.search import closest
from tests.meshes import ball, box, mixed, sphere


def check(domain, at, expected, tolerance):
    """Distances, directions of length 1 that point to the boundary, and 0 on the boundary."""
    distance, direction = domain.distance(at)
    torch.testing.assert_close(distance, expected, atol=tolerance, rtol=0)
    torch.testing.assert_close(direction.norm(dim=1), torch.ones(len(direction), dtype=torch.float64))
    own, normal = domain.distance()
    assert torch.equal(own == 0, domain.boundary)
    torch.testing.assert_close(normal.norm(dim=1), torch.ones(len(domain), dtype=torch.float64))
    return distance, direction


def test_a_disk_and_a_ball(rng):
    for domain, tolerance in ((Mesh.disk(0.05), 1e-3), (ball(), 0.03)):
        x = torch.rand(500, domain.dim, generator=rng, dtype=torch.float64) * 2 - 1
        x = x[x.norm(dim=1) < 0.98]
        _, direction = check(domain, x, 1 - x.norm(dim=1), tolerance)
        far = x.norm(dim=1) > 0.2
        torch.testing.assert_close(direction[far], (x / x.norm(dim=1, keepdim=True))[far], atol=0.25, rtol=0)
        normal = domain.distance()[1][domain.boundary]
        torch.testing.assert_close(normal, domain.points[domain.boundary], atol=0.05, rtol=0)


@pytest.mark.parametrize("kind", ["line", "triangle", "quad", "triangle6", "tetra", "hexahedron27", "wedge", "pyramid"])
def test_the_distance_in_a_box_is_that_of_the_grid(kind, rng):
    mesh = box(kind, 4)
    at = torch.rand(300, mesh.dim, generator=rng, dtype=torch.float64)
    expected = torch.minimum(at, 1 - at).amin(1)
    _, direction = check(mesh, at, expected, 1e-12)
    ours, theirs = Grid(5, mesh.dim).distance(at)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-15)
    torch.testing.assert_close(theirs, direction, rtol=0, atol=1e-9)
    outside = torch.full((1, mesh.dim), 1.5, dtype=torch.float64)
    for domain in (mesh, Grid(5, mesh.dim)):
        distance, direction = domain.distance(outside)
        assert float(distance) == pytest.approx(0.5 * mesh.dim**0.5)
        torch.testing.assert_close(direction, torch.full_like(direction, -(mesh.dim**-0.5)))


def test_an_l_shape(rng):
    mesh = Mesh.l_shape(0.07)
    x = torch.rand(2000, 2, generator=rng, dtype=torch.float64)
    x = x[~(x > 0.5).all(1)]
    to_notch = torch.where((x < 0.5).all(1), (x - 0.5).norm(dim=1), torch.where(x[:, 0] > 0.5, 0.5 - x[:, 1], 0.5 - x[:, 0]))
    expected = torch.minimum(torch.minimum(x, 1 - x).amin(1), to_notch)
    check(mesh, x, expected, 1e-12)


def test_boxes_with_periodic_axes():
    channel = Grid((4, 5), high=(1.0, 2.0), periodic=(True, False))
    distance, direction = channel.distance()
    assert torch.equal(distance, torch.minimum(channel.points[:, 1], 2 - channel.points[:, 1]))
    assert bool((direction[:, 0] == 0).all())
    assert torch.equal(distance == 0, channel.boundary)
    assert Grid(4, periodic=True).distance() is None
    centres = Grid(4, 1, nodes="centres").distance()
    assert centres[0].tolist() == [0.125, 0.375, 0.375, 0.125]
    assert centres[1][:, 0].tolist() == [-1, -1, 1, 1]
    corner = Grid(3).distance(torch.zeros(1, 2))
    assert float(corner[0]) == 0
    torch.testing.assert_close(corner[1], torch.full((1, 2), -(0.5**0.5), dtype=torch.float64))


def test_normals_on_the_boundary_point_outwards():
    for mesh in (box("triangle", 4), box("quad9", 4), box("tetra", 3), mixed()):
        middle, half = mesh.points.amax(0) / 2, mesh.points.amax(0) / 2
        distance, normal = mesh.distance()
        on = mesh.boundary & (((mesh.points - middle).abs() == half).sum(1) == 1)  # not at corners
        axis = ((mesh.points - middle).abs() == half).double() * (mesh.points - middle).sign()
        torch.testing.assert_close(normal[on], axis[on], atol=1e-9, rtol=0)
        assert float(distance[on].max()) == 0
    between = box("quad", 4).distance(torch.tensor([[0.3, 0.0], [1.0, 0.7]], dtype=torch.float64))
    torch.testing.assert_close(between[1], torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64))


def test_the_rim_of_a_surface():
    half = sphere(4)
    upper = half.points[:, 2][half.cells].amin(1) >= -1e-12
    kept, cells = torch.unique(half.cells[upper], return_inverse=True)
    dome = Mesh(half.points[kept], cells)
    assert torch.equal(dome.boundary, dome.points[:, 2].abs() < 1e-12)
    distance, direction = dome.distance()
    top = int(dome.points[:, 2].argmax())
    assert float(distance[top]) == pytest.approx(2**0.5, rel=1e-2)
    torch.testing.assert_close(
        direction[dome.boundary][:, 2], -torch.ones(int(dome.boundary.sum())).double(), atol=0.05, rtol=0
    )


def test_the_nearest_facet_is_found_among_facets_of_all_sizes(rng):
    """A fine wall on one side and a coarse one on the other, which is nearer although its nodes are not."""
    x = torch.linspace(0, 1, 41, dtype=torch.float64)
    bottom, top = torch.stack([x, torch.zeros(41)], 1), torch.tensor([[0.0, 0.5], [1.0, 0.5]], dtype=torch.float64)
    points = torch.cat([bottom, top])
    fan = [[i, i + 1, 41 if i < 20 else 42] for i in range(40)] + [[20, 42, 41]]
    mesh = Mesh(points, np.array(fan))
    at = torch.rand(500, 2, generator=rng, dtype=torch.float64) * torch.tensor([1.0, 0.5])
    expected = torch.stack([at[:, 0], 1 - at[:, 0], at[:, 1], 0.5 - at[:, 1]], 1).amin(1)
    check(mesh, at, expected, 1e-12)


def test_clouds_have_a_boundary_if_points_are_flagged(rng):
    grid = Grid(11)
    cloud = Cloud(grid.points, boundary=grid.boundary)
    distance, direction = cloud.distance()
    torch.testing.assert_close(distance, grid.distance()[0])
    assert torch.equal(distance == 0, grid.boundary)
    edge = cloud.boundary & (cloud.points[:, 0] == 0) & ((cloud.points[:, 1] - 0.5).abs() < 0.3)
    assert bool((direction[edge][:, 0] < -0.9).all())
    assert Cloud(grid.points).distance() is None
    all_flagged = Cloud(grid.points, boundary=torch.ones(121)).distance()
    assert float(all_flagged[0].max()) == 0
    torch.testing.assert_close(all_flagged[1].norm(dim=1), torch.ones(121).double())


def test_domains_of_users_get_defaults():
    class Lattice(Domain):
        kind = "lattice of a test"

        def __init__(self, points):
            self.points, self.weights, self.boundary = (
                points,
                torch.ones(len(points)).double(),
                points[:, 0] == points[:, 0].min(),
            )

        def arrays(self):
            return {"points": self.points}

        @classmethod
        def from_arrays(cls, arrays, numbers):
            return cls(arrays["points"])

        def _interpolate(self, values, at):
            return values[: len(at)]

    lattice = Lattice(Grid(3).points)
    moved = lattice.mapped(torch.ones(2), 2.0)
    assert isinstance(moved, Lattice)
    assert torch.equal(moved.points, (lattice.points - 1) / 2)
    assert torch.equal(lattice.distance()[0], lattice.points[:, 0])
    assert lattice.periods is None
    assert lattice.normals() is None
    assert lattice.measure_dim == 2


@pytest.mark.parametrize("name", ["disk", "holes", "ball", "mixed", "wedges"])
def test_no_facet_is_nearer_than_the_one_found(name, rng):
    """Against the distance to every facet, for points inside, outside and near the middle, where many facets tie."""
    mesh = {
        "disk": lambda: Mesh.disk(0.1),
        "holes": lambda: Mesh.holes(0.08),
        "ball": lambda: ball(2),
        "mixed": mixed,
        "wedges": lambda: Mesh(box("wedge", 3).points * torch.tensor([1.0, 0.05, 7.0]), box("wedge", 3).blocks),
    }[name]()
    low, high = mesh.points.amin(0), mesh.points.amax(0)
    at = low + (high - low) * (torch.rand(400, mesh.dim, generator=rng, dtype=torch.float64) * 1.4 - 0.2)
    at = torch.cat([at, (low + high) / 2 + 1e-3 * at[:20], mesh.points])
    rows = mesh._facets.rows[mesh._facets.boundary()]
    corners = mesh.points.numpy()[rows]
    least = torch.full((len(at),), torch.inf, dtype=torch.float64)
    for each in corners:
        same = np.broadcast_to(each, (len(at), *each.shape))
        foot = (closest(at.numpy(), same)[..., None] * same).sum(1)
        least = torch.minimum(least, (at - torch.from_numpy(foot)).norm(dim=1))
    torch.testing.assert_close(mesh.distance(at)[0], least, rtol=1e-9, atol=1e-12)
