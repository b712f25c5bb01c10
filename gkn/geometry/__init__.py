"""Domains (grid, mesh, cloud), functions on them, random fields, smoothing and fast transforms."""
