# Kernels lie in src/compute/cpu/<instruction set>/. Those files alone get the set's flags, and only
# those of the processor that is built for are compiled.
set(SPEECH_KERNELS ${CMAKE_SOURCE_DIR}/src/compute/cpu)
set(SPEECH_X86_SETS avx2 avx512 amx)
set(SPEECH_ARM_SETS neon dotprod i8mm)

set(avx2_flags -mavx2 -mfma -mf16c -mbmi2)
set(avx512_flags ${avx2_flags} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
                 -mprefer-vector-width=512)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # gcc 12 warns about its own AVX-512 header (GCC bug 105593).
  list(APPEND avx512_flags -Wno-uninitialized -Wno-maybe-uninitialized)
endif()
set(amx_flags ${avx512_flags} -mamx-tile -mamx-int8)
set(neon_flags)
set(dotprod_flags -march=armv8.2-a+dotprod)
set(i8mm_flags -march=armv8.2-a+dotprod+i8mm)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(SPEECH_SETS ${SPEECH_X86_SETS})
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(SPEECH_SETS ${SPEECH_ARM_SETS})
else()
  set(SPEECH_SETS)
endif()

foreach(isa ${SPEECH_SETS})
  file(GLOB sources CONFIGURE_DEPENDS ${SPEECH_KERNELS}/${isa}/*.cpp)
  set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS "${${isa}_flags}")
endforeach()

# Leaves out the kernels of other processors' sets.
function(speech_remove_foreign_kernels list)
  set(foreign ${SPEECH_X86_SETS} ${SPEECH_ARM_SETS})
  list(REMOVE_ITEM foreign ${SPEECH_SETS})
  foreach(isa ${foreign})
    list(FILTER ${list} EXCLUDE REGEX "/compute/cpu/${isa}/")
  endforeach()
  set(${list} "${${list}}" PARENT_SCOPE)
endfunction()
