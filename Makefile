# The commands for users and developers. Each installs the Debian packages that it needs (listed in scripts/setup),
# configures, builds and runs. A second run starts at once.
#
#   make demo          train on Fashion-MNIST with one process and with two, and compare (demo.html)
#   make test          build everything and run all tests
#   make install       install lockstep below PREFIX (/usr/local)
#   make install-python  install the Python package (docs/python.md) for /usr/bin/python3
#   make format lint   clang-format in place; clang-tidy
#   make help          print this list and all other commands

PRESET ?= release
BUILD := build/$(PRESET)
PREFIX ?= /usr/local
PYTHON ?= /usr/bin/python3
PYTHON_DIR ?=
CMAKE_FLAGS ?=
BENCH_FLAGS ?=
FUZZ_SECONDS ?= 600
FUZZ_TARGETS ?=
JOBS ?= $(shell nproc)
SOURCES = $(shell git ls-files '*.cc' '*.h')

.PHONY: help setup configure build demo test install install-python format format-check lint clean test-asan \
  test-tsan test-multinode test-slurm test-fresh test-matrix check-compilers check-cuda fuzz bench bench-heap

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' Makefile | tail -n +4
	@echo "  make build         build everything"
	@echo "  make test-asan     run the tests under the address and undefined-behaviour sanitizers"
	@echo "  make test-tsan     run the tests under the thread sanitizer"
	@echo "  make test-multinode  test 2 and 3 machines, simulated by network namespaces with slow links (root)"
	@echo "  make test-slurm    test with a real Slurm, as a one-machine cluster (root; installs slurm-wlm)"
	@echo "  make test-fresh    run README's two commands on a minimal Debian 12, as root, container and user (root)"
	@echo "  make test-matrix   run all tests with GCC and clang here, and with the LibTorch of newer Debians (root)"
	@echo "  make check-compilers  build with GCC and clang, in several build types, here and on newer Debians (root)"
	@echo "  make check-cuda    compile with LibTorch for CUDA and NCCL on a Debian 13, and run what needs no GPU (root)"
	@echo "  make fuzz          fuzz the readers of files and messages with libFuzzer (FUZZ_SECONDS=600 per target)"
	@echo "  make bench         compare with PyTorch and Open MPI, with a report (bench/results; less than two hours)"
	@echo "  make bench-heap    measure the effect of the heap settings (docs/tuning.md)"
	@echo "  make clean         remove build/"
	@echo
	@echo "To use an official LibTorch instead of Debian's:"
	@echo "  make test CMAKE_FLAGS=-DCMAKE_PREFIX_PATH=/path/to/libtorch"

setup:
	@scripts/setup build

configure: setup
	@[ -f $(BUILD)/build.ninja ] || cmake --preset $(PRESET) $(CMAKE_FLAGS)

build: configure
	@cmake --build $(BUILD) --parallel $(JOBS)

demo: configure
	@cmake --build $(BUILD) --parallel $(JOBS) --target fashion_mnist demo_report lockstep_cli lockstep_torch_cli
	@scripts/demo $(BUILD)

test:
	@scripts/setup build test
	@$(MAKE) --no-print-directory build
	@ctest --test-dir $(BUILD) --output-on-failure --no-tests=error --parallel $(JOBS)

test-asan:
	@scripts/setup build test
	@$(MAKE) --no-print-directory PRESET=asan build
	@ASAN_OPTIONS=detect_leaks=0:new_delete_type_mismatch=0 UBSAN_OPTIONS=halt_on_error=1 \
	  ctest --test-dir build/asan --output-on-failure --no-tests=error --label-exclude package

# A test's rank ends with _exit(), like a forked child; its threads that have ended by then were not joined.
test-tsan:
	@scripts/setup build test
	@$(MAKE) --no-print-directory PRESET=tsan build
	@TSAN_OPTIONS=die_after_fork=0:ignore_noninstrumented_modules=1:report_thread_leaks=0 \
	  ctest --test-dir build/tsan --output-on-failure --no-tests=error --label-exclude package

test-multinode:
	@scripts/setup build test
	@$(MAKE) --no-print-directory configure
	@cmake --build $(BUILD) --parallel $(JOBS) --target lockstep_cli multinode_probe
	@tests/multinode/full $(CURDIR)/$(BUILD)

test-slurm: build
	@scripts/setup slurm
	@tests/launchers/slurm $(CURDIR)/$(BUILD)

# MODES: root, container, user; default: all three.
test-fresh:
	@scripts/setup fresh
	@tests/fresh/run $(MODES)

# SYSTEMS and COMPILERS: names from scripts/matrix; default: all. The versions and counts: docs/compatibility.md.
test-matrix:
	@scripts/matrix test $(SYSTEMS)

check-compilers:
	@scripts/matrix build $(COMPILERS)

# Needs 14 GB of disk, and an hour or two for the first time.
check-cuda:
	@scripts/check-cuda

# FUZZ_TARGETS: the targets to run; default: all. Uses a separate configuration, with clang.
fuzz:
	@scripts/setup build fuzz
	@[ -f build/fuzz/build.ninja ] || cmake --preset fuzz $(CMAKE_FLAGS)
	@cmake --build build/fuzz --parallel $(JOBS) --target fuzz_targets
	@tests/fuzz/run build/fuzz $(FUZZ_SECONDS) $(FUZZ_TARGETS)

bench-heap: configure
	@cmake -DLOCKSTEP_BUILD_BENCHMARKS=ON $(BUILD) >/dev/null
	@cmake --build $(BUILD) --parallel $(JOBS) --target bench_heap
	@$(BUILD)/bench/heap/bench_heap

# Compares lockstep with its peers, in less than two hours. BENCH_FLAGS: see bench/run --help. A peer that cannot be
# installed is left out, and the report says so.
bench: configure
	@scripts/setup bench
	@scripts/setup bench-peers || echo "lockstep: continuing with the peers that are installed"
	@cmake -DLOCKSTEP_BUILD_BENCHMARKS=ON $(BUILD) >/dev/null
	@cmake --build $(BUILD) --parallel $(JOBS) --target bench_programs
	@bench/run $(BUILD) $(BENCH_FLAGS)

install: build
	@cmake --install $(BUILD) --prefix $(PREFIX) --strip # $(BUILD) keeps the debug information for stack traces

# PYTHON_DIR: the folder for the package; default: where PYTHON looks for packages (scripts/python-package). CMake runs
# again to find what has been installed since the first time.
install-python:
	@scripts/setup build python
	@$(MAKE) --no-print-directory configure
	@cmake $(BUILD) >/dev/null
	@scripts/python-package check $(BUILD)
	@cmake --build $(BUILD) --parallel $(JOBS) --target lockstep_python_package
	@PYTHON='$(PYTHON)' scripts/python-package install $(BUILD) '$(PREFIX)' '$(PYTHON_DIR)'

format:
	@scripts/setup lint
	@clang-format -i $(SOURCES)

format-check:
	@clang-format --dry-run -Werror $(SOURCES)

# A separate configuration with clang, which cannot read the headers that GCC has precompiled.
lint:
	@scripts/setup build lint
	@cmake -S . -B build/lint -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
	  -DLOCKSTEP_BUILD_TESTS=OFF -DLOCKSTEP_BUILD_EXAMPLES=OFF $(CMAKE_FLAGS) >/dev/null
	@run-clang-tidy -quiet -p build/lint '$(CURDIR)/src/.*\.cc$$'

clean:
	@rm -rf build
