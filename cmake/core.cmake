# The compute core (src/base, src/quant, src/compute) and its tests in one static program that needs
# no library of the target: {fmt} as headers, GoogleTest from the sources that Debian installs. So a
# cross compiler and an emulator are all that another processor takes (make arm).
find_package(Threads REQUIRED)
find_path(FMT_HEADERS fmt/format.h PATHS /usr/include NO_CMAKE_FIND_ROOT_PATH REQUIRED)
find_path(GTEST_SOURCES googletest/src/gtest-all.cc PATHS /usr/src/googletest
          NO_CMAKE_FIND_ROOT_PATH REQUIRED)

# These headers alone: beside them lie those of this machine's C library.
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/include)
file(CREATE_LINK ${FMT_HEADERS}/fmt ${CMAKE_BINARY_DIR}/include/fmt SYMBOLIC)

add_library(core_gtest STATIC ${GTEST_SOURCES}/googletest/src/gtest-all.cc
                              ${GTEST_SOURCES}/googletest/src/gtest_main.cc)
target_include_directories(core_gtest SYSTEM PUBLIC ${GTEST_SOURCES}/googletest/include
                                             PRIVATE ${GTEST_SOURCES}/googletest)
target_compile_options(core_gtest PRIVATE -w)

file(GLOB_RECURSE CORE_SOURCES CONFIGURE_DEPENDS
     ${CMAKE_SOURCE_DIR}/src/base/*.cpp ${CMAKE_SOURCE_DIR}/src/quant/*.cpp
     ${CMAKE_SOURCE_DIR}/src/compute/*.cpp)
speech_remove_foreign_kernels(CORE_SOURCES)
file(GLOB CORE_TESTS CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/compute/*_test.cpp)
add_executable(kernel_tests ${CORE_SOURCES} ${CORE_TESTS})
target_include_directories(kernel_tests PRIVATE ${CMAKE_SOURCE_DIR}/src)
target_include_directories(kernel_tests SYSTEM PRIVATE ${CMAKE_BINARY_DIR}/include)
target_compile_definitions(kernel_tests PRIVATE FMT_HEADER_ONLY=1)
target_link_libraries(kernel_tests PRIVATE core_gtest Threads::Threads)
# The linker warns of GoogleTest, which can look up hosts.
target_link_options(kernel_tests PRIVATE -static -Wl,--no-warnings)

# In pieces, which run side by side.
enable_testing()
set(pieces 8)
math(EXPR last "${pieces} - 1")
foreach(piece RANGE ${last})
  add_test(NAME kernels_${piece} COMMAND kernel_tests --gtest_brief=1 ${CORE_TEST_FLAGS})
  set_tests_properties(kernels_${piece} PROPERTIES ENVIRONMENT
                       "GTEST_TOTAL_SHARDS=${pieces};GTEST_SHARD_INDEX=${piece}")
endforeach()
add_test(NAME forced_scalar COMMAND kernel_tests --gtest_brief=1 --gtest_filter=Backend.*:KvCache.*)
set_tests_properties(forced_scalar PROPERTIES ENVIRONMENT SPEECH_CPU=scalar)

# Which sets a processor is found to run: the error for one that it does not run names the best.
function(add_refusal_test processor forced best)
  add_test(NAME ${processor}_refuses_${forced}
           COMMAND ${EMULATOR} -cpu ${processor} $<TARGET_FILE:kernel_tests>
                   --gtest_filter=Backend.ArgmaxTakesTheFirstAndRefusesNaN)
  set_tests_properties(${processor}_refuses_${forced} PROPERTIES ENVIRONMENT SPEECH_CPU=${forced}
                       PASS_REGULAR_EXPRESSION "does not run it; the best it runs is ${best}[^a-z]")
endfunction()
if(CMAKE_CROSSCOMPILING)
  list(GET CMAKE_CROSSCOMPILING_EMULATOR 0 EMULATOR)
  add_refusal_test(cortex-a72 dotprod neon)
  add_refusal_test(neoverse-n1 i8mm dotprod)
  add_refusal_test(max avx2 i8mm)
endif()
