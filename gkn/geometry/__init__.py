"""Domains (grid, mesh, cloud), functions on them, random fields, smoothing and fast transforms."""

from gkn.geometry.cloud import Cloud as Cloud
from gkn.geometry.domain import Domain as Domain
from gkn.geometry.grid import Grid as Grid
from gkn.geometry.mesh import Mesh as Mesh
