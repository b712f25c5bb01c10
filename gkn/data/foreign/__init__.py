"""Parsers of files by libraries that were not written for damaged or hostile files. They run in a process of their own.

Nothing here imports torch, so that the process starts quickly. `parsed` in process.py is all that readers use."""
