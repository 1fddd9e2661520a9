# Commands for users and developers. Each first sets up .venv where needed, without questions and without writing elsewhere.
PYTHON ?= python3
BIN := .venv/bin
NATIVE := pyproject.toml CMakeLists.txt runtime/package.py $(shell find cext -name '*.[ch]' -o -name '*.inc' -o -name '*.txt' -o -name '*.cmake' -o -name build_ffi.py)
PIP = $(BIN)/python -m pip --disable-pip-version-check --quiet
# The build's tools are installed in .venv, not in pip's temporary build environment: their paths stay the same, and so compiled
# objects are reused.
BUILD_TOOLS = 'scikit-build-core>=0.11' 'cffi>=1.17' 'cmake>=3.20' ninja
# Without a C compiler numba computes.
BUILD = PATH="$(CURDIR)/$(BIN):$$PATH" SATCHEL_SETS="$(or $(SATCHEL_SETS),native)" $(PIP) install --no-build-isolation -e '.$(if $(COMPILER),,[slow])'
COMPILER = $(shell command -v cc || command -v gcc || command -v clang)
# SATCHEL_SETS=... make: builds other CPU instruction sets (cext/cpu/CMakeLists.txt).
FOR_TESTS = -C cmake.define.SATCHEL_SETS="$(or $(SATCHEL_SETS),runnable)" -C cmake.define.SATCHEL_TEST_BACKENDS=ON -C cmake.define.SATCHEL_EMBED=ON
# Two processes, each with its own threads. The tests of a file run in one process, because they share models. A crashed process
# is not restarted: xdist, which distributes by file, would wait for it for ever. Files run
# in the order of tests/conftest.py, the longest first; xdist would begin with those that have the most tests.
RUN_TESTS = $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0

.PHONY: chat serve test lint types sanitize sanitize-memory sanitize-threads arm windows macos sycl backends barriers nightly test-stressed coverage faults fuzz nightly-fuzz soak endurance bench doctor docs wheels wheels-run clean
.DELETE_ON_ERROR:
# Where it is set, each of the many processes that tests start compiles all modules anew, which takes it twice the time.
unexport PYTHONDONTWRITEBYTECODE

chat: .venv/ready
	@$(BIN)/satchel chat

# Serves models through an API and a web page at http://127.0.0.1:8080.
serve: .venv/ready-to-serve
	@$(BIN)/satchel serve

# TESTS: the tests to run; default: all. SKIPPED=FILE: writes each skipped test with its reason to the file.
test: .venv/ready-to-test
	$(RUN_TESTS) $(if $(SKIPPED),--skipped=$(SKIPPED)) $(TESTS)

lint: .venv/with-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	git ls-files -z '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' | xargs -0 $(BIN)/clang-format --dry-run --Werror

types: .venv/with-dev
	$(BIN)/mypy

# Runs the C tests under the address and undefined-behaviour sanitizers, and the thread tests under the thread sanitizer.
sanitize: sanitize-memory sanitize-threads

sanitize-memory: .venv/ready-to-test
	PATH="$(CURDIR)/$(BIN):$$PATH" sh tests/cext/build.sh build/sanitize address

sanitize-threads: .venv/ready-to-test
	PATH="$(CURDIR)/$(BIN):$$PATH" sh tests/cext/build.sh build/tsan thread

# Tests the Arm kernels, cross-compiled and emulated; needs Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user.
arm: .venv/ready-to-test
	PATH="$(CURDIR)/$(BIN):$$PATH" sh .ci/arm

# Tests the CPU library for Windows, cross-compiled and run under wine; needs Debian's gcc-mingw-w64-x86-64, wine and wine64.
windows: .venv/ready-to-test
	PATH="$(CURDIR)/$(BIN):$$PATH" sh .ci/windows

# Compiles the sources of the CPU library for macOS, with Debian's clang-19.
macos: .venv/ready-to-test
	PATH="$(CURDIR)/$(BIN):$$PATH" sh .ci/macos

# Tests the SYCL backend on Intel's OpenCL for CPUs: make sycl WIDTHS=16 for one sub-group size. Downloads a gigabyte from PyPI.
sycl: .venv/ready-to-test
	.ci/sycl $(WIDTHS)

# Tests every backend that needs no GPU, in some ten minutes: Windows and macOS, SYCL at all sub-group sizes, and the op and model
# suites on test devices.
backends: windows macos sycl
	$(RUN_TESTS) tests/cext/test_gpu_kernels.py tests/cext/test_matrix_units.py tests/gpu tests/hip tests/metal

# Mutation test: removes each barrier of the GPU kernels in turn, which must break a result on the emulated GPU.
barriers: .venv/ready-to-test
	$(RUN_TESTS) -m "nightly or not nightly" tests/cext/test_barriers.py

# Runs all tests, those marked nightly too, with many more examples of property tests. Converted models are compared with PyTorch's
# answers, or with stored numbers where PyTorch cannot be installed.
nightly: .venv/ready-to-test
	-@$(MAKE) --no-print-directory .venv/with-reference
	$(RUN_TESTS) -m "nightly or not nightly" --hypothesis-profile=nightly --timeout=7200 -o faulthandler_timeout=7300

# Runs all tests three times in random order, once on one core, and once beside programs that keep all cores busy. WHAT selects
# some of these runs: make test-stressed WHAT="order-1 one-core busy".
test-stressed: .venv/ready-to-test
	$(BIN)/python tests/stressed.py $(WHAT)

# Prints the lines of the package that only the tests by night reach; some hours. TESTS: files or folders; default: all.
coverage: .venv/ready-to-test .venv/with-coverage
	$(BIN)/python tests/nightly_lines.py $(TESTS)

# Fuzzes, guided by coverage: atheris for Python, clang's libFuzzer for the C code of the block formats. Always the same inputs,
# about a minute of them; SECONDS=600: others, for so long.
fuzz: .venv/ready-to-test
	PATH="$(CURDIR)/$(BIN):$$PATH" .ci/fuzz $(SECONDS)

# Reads 100,000 mutated inputs: no crash, no memory beyond the file's size, none takes over a second.
nightly-fuzz: .venv/ready-to-test
	$(BIN)/python tests/fuzz/nightly.py $(COUNT) $(SEED)

# Injects faults: every system call fails in turn, writers are killed, files truncated, bits flipped. ONLY=kills: one kind of
# fault. SHORT=--short: a sample.
faults: .venv/ready-to-test
	$(BIN)/python tests/faults/run.py $(SHORT) $(if $(ONLY),--only "$(ONLY)")

# Runs random users of one engine whose cache is too small for them: make soak SECONDS=1800
soak: .venv/ready-to-test
	$(BIN)/python tests/soak.py $(or $(SECONDS),180)

# Soak test of the server, an hour: clients that stream, disconnect and err, and hostile API keys: make endurance SECONDS=600
endurance: .venv/ready-to-test
	$(BIN)/python bench/endurance.py --seconds $(or $(SECONDS),3600)

# Builds wheels for eight systems into dist/, by zig, and inspects them: make wheels TARGETS="model macos-arm64". GPU=FOLDER: with the
# images that packaging/gpu_images.py left there.
wheels: .venv/with-packaging
	$(BIN)/python packaging/wheels.py $(if $(GPU),--gpu $(GPU)) $(TARGETS)
	$(BIN)/python packaging/check.py

# Builds them twice, compares, and runs those that this machine can run, as root; an hour. make wheels-run STEPS="build linux"
wheels-run: .venv/with-packaging
	.ci/wheels $(STEPS)

bench: .venv/ready
	@$(BIN)/satchel bench

doctor: .venv/ready
	@$(BIN)/satchel doctor

# The documentation site, in build/site: open build/site/index.html. A warning, such as a link that leads nowhere, is an error.
docs: .venv/with-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

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

# Satchel with this processor's best kernels; after the tests were set up, with every kernel set that it supports. Objects stay in
# build/, so nothing is compiled twice.
.venv/ready: .venv/made $(NATIVE)
	@test -n "$(COMPILER)" || echo "make: no C compiler, so Satchel will be slow: apt-get install gcc, then make clean" >&2
	@$(BUILD) $(if $(wildcard .venv/ready-to-test),$(FOR_TESTS))
	@touch $@

.venv/ready-to-serve: .venv/with-server
	@touch $@

.venv/ready-to-test: .venv/ready .venv/with-dev
	@$(BUILD) --no-deps $(FOR_TESTS)
	@touch $@

# Installs the libraries of one of pyproject.toml's extras, without building Satchel again.
.venv/with-%: .venv/ready
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$*"], sep="\n")' >.venv/$*.txt
	@$(PIP) install -r .venv/$*.txt
	@touch $@
