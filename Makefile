# make quickstart    trains three aggregators with three seeds, prints a table, draws a picture
# make test          runs the tests and the examples in the docstrings
# make lint          ruff and mypy
# make docs          builds the guide, with the reference of all classes, in site/
# make constraints   writes constraints.txt anew: the newest releases beside the torch it names
#
# All but the last work on a fresh clone and need nothing but Python 3.11 or newer. They run in
#   VENV=DIR         if given: in that environment, made if it is not there;
#   else the active environment (or, as long as there is no .venv, the python3 of the PATH), if it
#                    has all that the target needs; nothing is installed into it;
#   else .venv       made on first use, and brought up to date when pyproject.toml or
#                    constraints.txt changes.
#
# PYTHON=python3.12  the interpreter to make environments with
# TORCH_INDEX=URL    the package index to take torch from. For Linux, pip's default index has only
#                    the CUDA build of torch: gigabytes, though it runs without a GPU too. Leaving
#                    out the CUDA libraries (--no-deps) is no way round, as that build links to
#                    them. The small CPU build comes from PyTorch's own index; name it here, or in
#                    pip's configuration. A torch that is installed already and fits is kept.
# PYTEST_ARGS="…"    more arguments for pytest
# QUIET=             shows what pip does

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help quickstart test lint docs versions constraints

PYTHON ?= $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
TORCH_INDEX ?=
PYTEST_ARGS ?=
QUIET ?= -qq
EXTRAS := recipes$(if $(filter-out quickstart,$(MAKECMDGOALS)), docs test)

# Succeeds where every requirement of pyproject.toml, with these extras, is installed.
is_ready = $(1) -c 'import sys, tomllib; \
  from importlib.metadata import version; \
  from packaging.requirements import Requirement; \
  project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
  extras = [project["optional-dependencies"][name] for name in sys.argv[1:]]; \
  needs = [Requirement(need) for need in sum(extras, project["dependencies"])]; \
  sys.exit(not all(need.specifier.contains(version(need.name), True) for need in needs))' \
  $(EXTRAS) 2>/dev/null

ifndef VENV
VENV := .venv
ifneq ($(VIRTUAL_ENV)$(CONDA_PREFIX)$(if $(wildcard .venv),,no .venv),)
ACTIVE := $(if $(VIRTUAL_ENV),$(VIRTUAL_ENV)/bin/python,$(shell command -v python3))
ACTIVE := $(shell $(call is_ready,$(ACTIVE)) && echo $(ACTIVE))
endif
endif

ifneq ($(ACTIVE),)
RUN := $(ACTIVE)
else
RUN := $(VENV)/bin/python
ENVIRONMENT := $(VENV)/.fedlight-$(if $(filter test,$(EXTRAS)),test,run)
endif

# This folder's sources, even where another copy of fedlight is installed.
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
export PIP_DISABLE_PIP_VERSION_CHECK := 1

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' Makefile

quickstart: $(ENVIRONMENT)
	@$(RUN) recipes/quickstart.py

ifneq ($(wildcard ../shared/data),)
test: export FEDLIGHT_DATA ?= $(abspath ../shared/data)
endif
# The tests are compiled once, not by each process of each run, even where Python is told to keep none.
test: $(ENVIRONMENT)
	@PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(RUN) -m pytest -q -ra -n 2 --dist worksteal $(PYTEST_ARGS)

lint: $(ENVIRONMENT)
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy

# The variable silences an advertisement of the theme for its successor. With --quiet, --strict would
# not see any warnings.
docs: $(ENVIRONMENT)
	@NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict
	@echo 'The guide: site/index.html'

versions: $(ENVIRONMENT)
	@$(RUN) -c 'import sys; print("python", sys.version.split()[0], "in", sys.prefix)'
	@$(RUN) -c 'import sys; from importlib.metadata import version; \
	  print(*(f"{name} {version(name)}" for name in sys.argv[1:]), sep="\n")' \
	  torch lightning torchmetrics datasets numpy pytest ruff mypy mkdocs

PIP_INSTALL = $(RUN) -m pip install $(QUIET) --constraint constraints.txt
comma := ,
space := $(subst ,, )

# An environment without the mark was made by other means: it is used as it is if nothing is missing.
$(VENV)/.fedlight-%: pyproject.toml constraints.txt
	@if [ ! -e $@ ] && $(call is_ready,$(RUN)); then exit; fi; \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'fedlight needs Python 3.11 or newer: make PYTHON=python3.12 …' >&2; exit 1; }; \
	echo 'Installing into $(VENV) (minutes, the first time)'; \
	[ -x $(RUN) ] || $(PYTHON) -m venv $(VENV); \
	$(PIP_INSTALL) hatchling; \
	$(PIP_INSTALL) $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX)) torch; \
	$(PIP_INSTALL) --no-build-isolation \
	  --editable .[$(subst $(space),$(comma),$(EXTRAS))]; \
	touch $@

# The CUDA libraries are left out: torch itself names the releases that it needs.
constraints:
	@rm -rf build/pins
	@$(PYTHON) -m venv build/pins
	@build/pins/bin/python -m pip install $(QUIET) hatchling $(shell grep ^torch== constraints.txt)
	@build/pins/bin/python -m pip install $(QUIET) --no-build-isolation .[recipes,ray,plot,docs,test]
	@build/pins/bin/python -m pip freeze --all --exclude fedlight --exclude pip | \
	  sed 's/+.*//' | grep -vE '^(nvidia|cuda|triton)' > build/pins.txt
	@{ sed -n '/^#/p' constraints.txt; cat build/pins.txt; } > build/constraints.txt
	@mv build/constraints.txt constraints.txt
