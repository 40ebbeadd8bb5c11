# The front door. `make demo` builds the program and lets it write what is said in a recording;
# `make test` proves the build. CC and CXX choose another compiler than clang, BUILD another folder,
# JOBS how many compilations run at once.
BUILD ?= build
JOBS ?= $(shell nproc)
ifeq ($(origin CC),default)
CC = clang
endif
ifeq ($(origin CXX),default)
CXX = clang++
endif

# Debian 12 packages that the build, the tests and the benchmarks need. clang makes the faster
# kernels; gcc 12 builds everything too.
PACKAGES = clang cmake ninja-build pkg-config libc6-dev libstdc++-12-dev ccache \
  libfmt-dev nlohmann-json3-dev libcli11-dev zlib1g-dev libsndfile1-dev libarchive-dev \
  libyaml-cpp-dev libutf8proc-dev libpcre2-dev libpulse-dev libavformat-dev libavcodec-dev \
  libavutil-dev libswresample-dev libboost-dev libgtest-dev libbenchmark-dev libopenblas-dev \
  binutils python3-venv
# For make format, make asan and make fuzz.
DEVELOPER_PACKAGES = clang-format llvm libclang-rt-14-dev g++
# For make arm.
ARM_PACKAGES = cmake ninja-build ccache g++-aarch64-linux-gnu qemu-user googletest libfmt-dev

CONFIGURE = cmake -S . -G Ninja -DCMAKE_C_COMPILER=$(CC) -DCMAKE_CXX_COMPILER=$(CXX)

.PHONY: build demo quality tiny-en test bench fuzz format check-format install deps developer-deps asan tsan gcc \
  arm clean

build: deps
	@$(CONFIGURE) -B $(BUILD) -DCMAKE_BUILD_TYPE=Release -DSPEECH_TESTS=OFF >$(BUILD).log 2>&1 \
	  || { cat $(BUILD).log; exit 1; }; rm -f $(BUILD).log
	cmake --build $(BUILD) --parallel $(JOBS) --target speech speech_shared

# What is said in a recording of a voice that the model never heard in training, each word with its
# times in ms, and where there is speech in a real recording. Both models lie in the repository.
DEMO = models/tiny-en/test/flite-slt-034.opus
demo: build
	@echo 'Said:  The train leaves at eleven forty-five in the evening.'
	$(BUILD)/speech asr tiny-en $(DEMO)
	$(BUILD)/speech asr tiny-en $(DEMO) --format words
	$(BUILD)/speech vad silero-vad tests/data/audio/jfk.wav

# Error rates of tiny-en in every weight type, into docs/quality.md. NEMO: the checkpoint; DATA: the
# folder of training/make_data.py, to score the WAVE files too; DECODINGS and THREADS as there.
NEMO ?= training/checkpoint/model.nemo
export DECODINGS THREADS
quality: build
	python3 scripts/tiny-en.py quality $(BUILD)/speech $(NEMO) $(DATA)

# The model in the repository from a checkpoint: its files, tables, curve, and the catalog's entry.
# PYTHON needs matplotlib.
CURVE ?= training/checkpoint/curve.csv
PYTHON ?= python3
tiny-en: build
	python3 scripts/tiny-en.py release $(BUILD)/speech $(NEMO) $(DATA)
	$(PYTHON) training/plot.py $(CURVE) models/tiny-en/curve.png
	cmake --build $(BUILD) --parallel $(JOBS) --target speech speech_shared

test: deps
	@$(CONFIGURE) -B $(BUILD) -DCMAKE_BUILD_TYPE=Release -DSPEECH_TESTS=ON >$(BUILD).log 2>&1 \
	  || { cat $(BUILD).log; exit 1; }; rm -f $(BUILD).log
	cmake --build $(BUILD) --parallel $(JOBS)
	@scripts/python-environment.sh $(BUILD)/python tests/requirements.txt
	ctest --test-dir $(BUILD) --parallel $(JOBS) --output-on-failure --progress

bench: deps
	$(CONFIGURE) -B $(BUILD) -DCMAKE_BUILD_TYPE=Release -DSPEECH_BENCH=ON
	cmake --build $(BUILD) --parallel $(JOBS) --target speech_bench
	$(BUILD)/speech_bench $(BENCH_FLAGS)

# Every fuzz target for FUZZ_SECONDS under AddressSanitizer and UBSan, two at a time.
FUZZ_SECONDS ?= 60
fuzz: developer-deps
	cmake --preset asan -DSPEECH_BENCH=OFF -DSPEECH_TESTS=OFF
	cmake --build --preset asan --parallel $(JOBS)
	fuzz/run.sh $(FUZZ_SECONDS)

# The unit tests under sanitizers.
asan tsan: developer-deps
	cmake --preset $@ -DSPEECH_BENCH=OFF -DSPEECH_FUZZ=OFF
	cmake --build --preset $@ --parallel $(JOBS)
	ASAN_OPTIONS=allocator_may_return_null=1 LSAN_OPTIONS=suppressions=tests/lsan.supp \
	  build-$@/speech_tests --gtest_brief=1

# The whole with gcc.
gcc: developer-deps
	cmake --preset gcc -DSPEECH_BENCH=OFF
	cmake --build --preset gcc --parallel $(JOBS)

# The compute core for 64-bit ARM, crossed, and its tests under emulation.
arm:
	@scripts/install-packages.sh $(ARM_PACKAGES)
	cmake --preset arm
	cmake --build --preset arm --parallel $(JOBS)
	ctest --test-dir build-arm --parallel $(JOBS) --output-on-failure

SOURCES = $(shell git ls-files '*.cpp' '*.h' '*.c')
format: developer-deps
	clang-format -i $(SOURCES)
check-format: developer-deps
	clang-format --dry-run --Werror $(SOURCES)

# Into PREFIX: the program, the library, its header and the bundled models.
PREFIX ?= /usr/local
install: build
	cmake --install $(BUILD) --prefix $(PREFIX)

deps:
	@scripts/install-packages.sh $(PACKAGES)
developer-deps:
	@scripts/install-packages.sh $(PACKAGES) $(DEVELOPER_PACKAGES)

clean:
	rm -rf build build-*
