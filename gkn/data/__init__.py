"""Datasets: pairs of functions, where they come from, how they are stored, normalised and checked."""
