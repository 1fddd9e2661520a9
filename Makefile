# The few commands people use. chat and test set everything up in .venv first: no question, nothing outside this folder.
PYTHON ?= python3
BIN := .venv/bin
NATIVE := pyproject.toml CMakeLists.txt runtime/package.py $(shell find cext -name '*.[ch]' -o -name '*.inc' -o -name '*.txt' -o -name build_ffi.py)
PIP = $(BIN)/python -m pip --disable-pip-version-check --quiet
RUN_TESTS = $(BIN)/python -m pytest

.PHONY: chat test lint types sanitize arm nightly fuzz nightly-fuzz bench doctor clean
.DELETE_ON_ERROR:

chat: .venv/ready
	@$(BIN)/satchel chat

test: .venv/ready-to-test
	$(RUN_TESTS)

lint: .venv/ready-to-test
	$(BIN)/ruff check .

# The package's folders stand in the root under other names: mypy sees them through links.
types: .venv/ready-to-test
	@mkdir -p build/types/satchel
	@for room in quant formats cext runtime cli; do ln -sfn "$(CURDIR)/$$room" build/types/satchel/$$room; done
	@cp runtime/package.py build/types/satchel/__init__.py
	cd build/types && MYPYPATH=. ../../$(BIN)/mypy --config-file ../../pyproject.toml --strict -p satchel

# The C side alone, under the address and undefined-behaviour sanitizers.
sanitize: .venv/ready-to-test
	PATH="$(CURDIR)/$(BIN):$$PATH" sh .ci/sanitize

# The Arm kernels, cross-compiled and emulated; takes Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user.
arm: .venv/ready-to-test
	PATH="$(CURDIR)/$(BIN):$$PATH" sh .ci/arm

# What takes too long for every change: the marked tests, and property tests with many more examples.
nightly: .venv/ready-to-test
	$(RUN_TESTS) -m "nightly or not nightly" --hypothesis-profile=nightly

# A minute of coverage-guided fuzzing: atheris for Python, libFuzzer (of clang) for the C side of the block formats.
fuzz: .venv/ready-to-test
	PATH="$(CURDIR)/$(BIN):$$PATH" .ci/fuzz

# 100,000 mutated inputs, one after the other: no crash, no memory beyond the file's size, none over a second.
nightly-fuzz: .venv/ready-to-test
	$(BIN)/python tests/fuzz/nightly.py $(COUNT) $(SEED)

bench: .venv/ready
	@$(BIN)/satchel bench

doctor: .venv/ready
	@$(BIN)/satchel doctor

clean:
	rm -rf .venv build dist cext/_hal.py

.venv/made:
	@command -v $(PYTHON) >/dev/null || { echo "make: no $(PYTHON): apt-get install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"make: Python 3.11 or newer is needed, $(PYTHON) is {sys.version.split()[0]}")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) makes no virtual environments: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/ready: .venv/made $(NATIVE)
	@echo "Setting up .venv (about a minute, once) ..." >&2
	@command -v cc >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null || echo "make: no C compiler, so Satchel will be slow: apt-get install gcc, then make clean" >&2
	@$(PIP) install -e .
	@touch $@

.venv/ready-to-test: .venv/ready
	@$(PIP) install -e '.[dev]'
	@touch $@
