# The few commands that users need. chat and test set everything up in .venv first: no question, nothing outside this folder.
PYTHON ?= python3
BIN := .venv/bin
NATIVE := pyproject.toml CMakeLists.txt runtime/package.py $(shell find cext -name '*.[ch]' -o -name '*.inc' -o -name '*.txt' -o -name build_ffi.py)
PIP = $(BIN)/python -m pip --disable-pip-version-check --quiet
# The build's tools live in .venv, not in an environment that pip makes anew each time: paths stay, and so do finished objects.
BUILD_TOOLS = 'scikit-build-core>=0.11' 'cffi>=1.17' 'cmake>=3.20' ninja
BUILD = PATH="$(CURDIR)/$(BIN):$$PATH" SATCHEL_SETS="$(or $(SATCHEL_SETS),native)" $(PIP) install --no-build-isolation -e .
# SATCHEL_SETS=... make: other instruction sets of the CPU than these (cext/cpu/CMakeLists.txt).
FOR_TESTS = -C cmake.define.SATCHEL_SETS="$(or $(SATCHEL_SETS),runnable)" -C cmake.define.SATCHEL_TEST_BACKENDS=ON
# Two processes, each with threads of its own; a file's tests stay together, for they share models. One that crashes is not
# begun anew: xdist, sharing out by file, would wait for it for ever.
RUN_TESTS = $(BIN)/python -m pytest -n 2 --dist loadfile --max-worker-restart=0

.PHONY: chat serve test lint types sanitize sanitize-memory sanitize-threads arm windows macos sycl backends barriers nightly test-stressed faults fuzz nightly-fuzz soak endurance bench doctor clean
.DELETE_ON_ERROR:

chat: .venv/ready
	@$(BIN)/satchel chat

# Models behind an API, and a page, at http://127.0.0.1:8080
serve: .venv/ready-to-serve
	@$(BIN)/satchel serve

# TESTS: which, of all. SKIPPED=FILE: the names of skipped tests and why, a line each, go there.
test: .venv/ready-to-test
	$(RUN_TESTS) $(if $(SKIPPED),--skipped=$(SKIPPED)) $(TESTS)

lint: .venv/with-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	git ls-files -z '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' | xargs -0 $(BIN)/clang-format --dry-run --Werror

types: .venv/with-dev
	$(BIN)/mypy

# The C side alone: under the address and undefined-behaviour sanitizers, and its threads under the thread sanitizer.
sanitize: sanitize-memory sanitize-threads

sanitize-memory: .venv/ready-to-test
	PATH="$(CURDIR)/$(BIN):$$PATH" sh tests/cext/build.sh build/sanitize address

sanitize-threads: .venv/ready-to-test
	PATH="$(CURDIR)/$(BIN):$$PATH" sh tests/cext/build.sh build/tsan thread

# The Arm kernels, cross-compiled and emulated; takes Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user.
arm: .venv/ready-to-test
	PATH="$(CURDIR)/$(BIN):$$PATH" sh .ci/arm

# The CPU library for Windows, cross-compiled and run under wine; takes Debian's gcc-mingw-w64-x86-64, wine and wine64.
windows: .venv/ready-to-test
	PATH="$(CURDIR)/$(BIN):$$PATH" sh .ci/windows

# The sources of the CPU library compiled for macOS, by Debian's clang-19.
macos: .venv/ready-to-test
	PATH="$(CURDIR)/$(BIN):$$PATH" sh .ci/macos

# The SYCL backend on Intel's OpenCL for processors: make sycl WIDTHS=16 for one width of a sub-group. Takes a gigabyte of PyPI's.
sycl: .venv/ready-to-test
	.ci/sycl $(WIDTHS)

# Every backend that can be checked without a GPU, some ten minutes: Windows and macOS, SYCL at all widths, and the op and model
# suites on the stand-ins.
backends: windows macos sycl
	$(RUN_TESTS) tests/cext/test_gpu_kernels.py tests/cext/test_matrix_units.py tests/gpu tests/hip tests/metal

# Each barrier of the GPU kernels left out, one after the other: the emulated GPU must miss it.
barriers: .venv/ready-to-test
	$(RUN_TESTS) -m "nightly or not nightly" tests/cext/test_barriers.py

# What takes too long for every change: the marked tests, and property tests with many more examples.
nightly: .venv/ready-to-test
	$(RUN_TESTS) -m "nightly or not nightly" --hypothesis-profile=nightly --timeout=7200 -o faulthandler_timeout=7300

# All tests three times in random order, once on one core, once beside programs that keep all cores busy; one of these by
# make test-stressed WHAT="order-1 one-core busy".
test-stressed: .venv/ready-to-test
	$(BIN)/python tests/stressed.py $(WHAT)

# A minute of coverage-guided fuzzing: atheris for Python, libFuzzer (of clang) for the C side of the block formats.
fuzz: .venv/ready-to-test
	PATH="$(CURDIR)/$(BIN):$$PATH" .ci/fuzz

# 100,000 mutated inputs, one after the other: no crash, no memory beyond the file's size, none over a second.
nightly-fuzz: .venv/ready-to-test
	$(BIN)/python tests/fuzz/nightly.py $(COUNT) $(SEED)

# Every system call fails in turn, writers are killed, files cut, bits flipped: make faults ONLY=kills for one kind of table, or
# SHORT=--short for a sample.
faults: .venv/ready-to-test
	$(BIN)/python tests/faults/run.py $(SHORT) $(if $(ONLY),--only "$(ONLY)")

# Random users of one engine, in a cache that is too small for them: make soak SECONDS=1800
soak: .venv/ready-to-test
	$(BIN)/python tests/soak.py $(or $(SECONDS),180)

# The server for an hour: clients that stream, leave and err, and API keys that mean harm: make endurance SECONDS=600
endurance: .venv/ready-to-test
	$(BIN)/python bench/endurance.py --seconds $(or $(SECONDS),3600)

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
	@echo "Setting up .venv (about a minute, once) ..." >&2
	@$(PYTHON) -m venv .venv
	@$(PIP) install $(BUILD_TOOLS)
	@touch $@

# Satchel with the best kernels of this processor, and once the tests have been set up, with all that it runs: their objects stay in
# build/, so nothing is compiled twice.
.venv/ready: .venv/made $(NATIVE)
	@command -v cc >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null || echo "make: no C compiler, so Satchel will be slow: apt-get install gcc, then make clean" >&2
	@$(BUILD) $(if $(wildcard .venv/ready-to-test),$(FOR_TESTS))
	@touch $@

.venv/ready-to-serve: .venv/with-server
	@touch $@

.venv/ready-to-test: .venv/ready .venv/with-dev
	@$(BUILD) --no-deps $(FOR_TESTS)
	@touch $@

# The libraries of one of pyproject.toml's extras, without building Satchel again.
.venv/with-%: .venv/ready
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$*"], sep="\n")' >.venv/$*.txt
	@$(PIP) install -r .venv/$*.txt
	@touch $@
