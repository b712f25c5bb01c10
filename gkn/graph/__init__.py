"""Graphs of points: neighbour search, rules that turn points into graphs, batches of graphs."""
