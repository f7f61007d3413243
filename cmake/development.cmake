# What our own tests, benchmarks and examples are built with. Nothing here reaches a user.

add_library(deeprec_dev INTERFACE)
target_link_libraries(deeprec_dev INTERFACE deeprec::deeprec)
target_compile_options(
  deeprec_dev
  INTERFACE
    "$<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang,AppleClang>:-Wall;-Wextra;-Wshadow;-Werror=return-type;-Werror=unused-result;-Werror=reorder;-Werror=uninitialized>"
)
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  target_link_options(deeprec_dev INTERFACE LINKER:--as-needed) # a test loads what it really calls
endif()
if(DEEPREC_SANITIZE)
  target_compile_options(
    deeprec_dev INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${DEEPREC_SANITIZE}>"
                          "$<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>"
                          "$<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>")
  # Checks as calls, and pointers left to the address sanitizer: a fifth of the time to compile. The check of alignment alone
  # takes a sixth of it.
  target_compile_options(
    deeprec_dev
    INTERFACE
      "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:SHELL:--param asan-instrumentation-with-call-threshold=0>"
      "$<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=alignment,null,object-size,pointer-overflow,vptr>")
  # GCC takes members that the address sanitizer watches for uninitialized ones.
  target_compile_options(deeprec_dev INTERFACE "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-error=maybe-uninitialized>")
  target_link_options(deeprec_dev INTERFACE "-fsanitize=${DEEPREC_SANITIZE}")
endif()

# These CMAKE_ variables are written only when no other project can see them.
if(PROJECT_IS_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release)
  endif()
  find_program(DEEPREC_CCACHE ccache DOC "Compiler cache of our own targets")
  mark_as_advanced(DEEPREC_CCACHE)
  if(DEEPREC_CCACHE) # by the lists of included files: an empty cache costs next to nothing
    set(deeprec_launcher "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros
                         CCACHE_DEPEND=1 "${DEEPREC_CCACHE}")
    set(CMAKE_CXX_COMPILER_LAUNCHER ${deeprec_launcher})
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${deeprec_launcher})
  endif()
  # The CUDA language is for our own tests and benchmarks; a user's project decides for itself.
  if(TARGET deeprec::cuda AND (DEEPREC_BUILD_TESTS OR DEEPREC_BUILD_BENCHMARKS))
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      enable_language(CUDA)
    endif()
  endif()
endif()
set(DEEPREC_CUDA_ARCHITECTURES "80;90" CACHE STRING "CUDA architectures of our own tests")
mark_as_advanced(DEEPREC_CUDA_ARCHITECTURES)

# Where tests and benchmarks find the sample data sets; without them they say what they skip.
if(NOT "$ENV{DEEPREC_DATA_DIR}" STREQUAL "")
  set(deeprec_data "$ENV{DEEPREC_DATA_DIR}")
else()
  cmake_path(SET deeprec_data NORMALIZE "${PROJECT_SOURCE_DIR}/../shared/data")
  if(NOT IS_DIRECTORY "${deeprec_data}")
    set(deeprec_data "")
  endif()
endif()
set(DEEPREC_DATA_DIR "${deeprec_data}" CACHE PATH "Folder with the sample data sets")

# Links a target of ours with deeprec and with every component that this machine has.
function(deeprec_link_components target)
  target_link_libraries(${target} PRIVATE deeprec_dev)
  foreach(component IN ITEMS onednn zlib zstd farmhash cuda)
    if(TARGET deeprec::${component})
      target_link_libraries(${target} PRIVATE deeprec::${component})
    endif()
  endforeach()
endfunction()

# A target of ours with .cu files. CMake before 3.26 does not know how nvcc spells C++20.
function(deeprec_cuda_target target)
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${DEEPREC_CUDA_ARCHITECTURES}")
  if("cuda_std_20" IN_LIST CMAKE_CUDA_COMPILE_FEATURES)
    target_compile_features(${target} PRIVATE cuda_std_20)
  else()
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>")
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:--extended-lambda>")
endfunction()
