"""Runs: what is trained, how it is judged, each result a file; and pages made of them."""
