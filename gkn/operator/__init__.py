"""Operators: trained networks with everything they need to map raw inputs to raw outputs."""
