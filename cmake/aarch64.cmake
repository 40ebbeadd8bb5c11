# Toolchain: Debian's cross compiler for 64-bit ARM, and the emulator that runs what it makes.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -cpu max)

# Where everything is emulated, the scalar reference is not compared with itself at length.
set(CORE_TEST_FLAGS --gtest_filter=-Isa/KernelsTest.Attention*/scalar)
