"""Reproductions and comparisons: tables, figures and pages. Nothing else in gkn depends on this folder."""
