"""Past the paper: near field and far field, multigrid, and what they cost."""
