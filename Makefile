# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow test-gpu lint mutants bench clean

demo: .venv/.ready
	$(BIN)/gkn demo

# Kernels that are interpreted are some millions of Python calls, which take twice as long when each is looked at for coverage.
INTERPRETED := tests/test_kernel.py tests/test_march.py tests/test_near.py tests/test_ops.py
test: export OMP_NUM_THREADS := 1
test: .venv/.ready
	$(BIN)/pytest -n 2 -m "not slow and not gpu" $(INTERPRETED)
	$(BIN)/pytest -n 2 -m "not slow and not gpu" $(INTERPRETED:%=--ignore=%) --cov=gkn --cov-report=term --cov-fail-under=90

test-slow: .venv/.ready
	$(BIN)/pytest -n 2 -m slow

# With whatever python3 there is, for machines where nothing can be installed.
test-gpu:
	$(PYTHON) -m pytest -c /dev/null --rootdir . -q tests/test_cuda.py

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Break the code in every way quality.md names, and see the tests fail. Minutes.
mutants: .venv/.ready
	$(BIN)/python -m tests.mutants

bench: .venv/.ready
	$(BIN)/python -m benchmarks.solvers

# Every install goes through constraints.txt: without it pip may take a newer torch and gigabytes with it.
.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache runs
