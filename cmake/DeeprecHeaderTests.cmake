# Tests of the headers as headers, generated from the tree so that none is left out.
#
#   alone      each .hpp in a unit of its own, twice: it includes what it needs
#   poisoned   all .hpp in one unit, after every foreign header that the tree includes and then hostile macros
#   twice      all these objects in one program: nothing that should be inline is not
#   second     poisoned once more with the other of g++ and clang++
#   cuda       each .hpp and each .cuh inside a .cu
#
# simd/begin_X.hpp and simd/end_X.hpp are two halves of one thing, and are tested as a pair. simd/foreach_region.hpp is
# tested by the headers that name a source for it.

include("${CMAKE_CURRENT_LIST_DIR}/optional_hosts.cmake")

set(DEEPREC_HEADER_FLAGS -O2 -Wall -Wextra -Werror)

# Sets <out> to the flags that a unit needs besides.
function(deeprec_flags_of_unit unit out)
  set(flags)
  if(unit STREQUAL "interop/openmp")
    set(flags -fopenmp)
  endif()
  set(${out} "${flags}" PARENT_SCOPE)
endfunction()

# Notes what a header needs at its top level, outside of any #if: its own foreign headers and those
# of the headers that it includes.
function(deeprec_scan_header header)
  get_property(known GLOBAL PROPERTY "deeprec_needs_${header}" SET)
  if(known)
    return()
  endif()
  set_property(GLOBAL PROPERTY "deeprec_needs_${header}" "")
  file(STRINGS "${PROJECT_SOURCE_DIR}/include/${header}" lines
       REGEX "^[ \t]*#[ \t]*(if|endif|include[ \t]*<)")
  set(depth 0)
  foreach(line IN LISTS lines)
    if(line MATCHES "#[ \t]*if")
      math(EXPR depth "${depth} + 1")
    elseif(line MATCHES "#[ \t]*endif")
      math(EXPR depth "${depth} - 1")
    elseif(line MATCHES "<([^>]+)>")
      set(included "${CMAKE_MATCH_1}")
      if(NOT included MATCHES "^deeprec/")
        set_property(GLOBAL APPEND PROPERTY deeprec_foreign_headers "${included}")
        if(depth EQUAL 0)
          set_property(GLOBAL APPEND PROPERTY "deeprec_needs_${header}" "${included}")
        endif()
      elseif(EXISTS "${PROJECT_SOURCE_DIR}/include/${included}")
        deeprec_scan_header("${included}")
        if(depth EQUAL 0)
          get_property(needs GLOBAL PROPERTY "deeprec_needs_${included}")
          set_property(GLOBAL APPEND PROPERTY "deeprec_needs_${header}" ${needs})
        endif()
      endif()
    endif()
  endforeach()
endfunction()

# Sets <out> to what this machine lacks for <header>, or to nothing.
function(deeprec_missing_for header out)
  deeprec_scan_header("${header}")
  get_property(needs GLOBAL PROPERTY "deeprec_needs_${header}")
  list(REMOVE_DUPLICATES needs)
  set(missing)
  foreach(need IN LISTS needs)
    if(need MATCHES "^(oneapi/)?dnnl")
      if(NOT TARGET deeprec::onednn)
        list(APPEND missing oneDNN)
      endif()
    elseif(need MATCHES "^(zlib|zstd|farmhash)(_errors)?[.]h$")
      if(NOT TARGET deeprec::${CMAKE_MATCH_1})
        list(APPEND missing ${CMAKE_MATCH_1})
      endif()
    elseif(need MATCHES "^(cuda|cublas|curand|cub/|thrust/|cooperative_groups)")
      if(NOT TARGET deeprec::cuda)
        list(APPEND missing CUDA)
      endif()
    elseif(need STREQUAL "nccl.h")
      if(NOT TARGET deeprec::nccl)
        list(APPEND missing NCCL)
      endif()
    elseif(need STREQUAL "omp.h")
      if(NOT DEEPREC_HAVE_OPENMP)
        list(APPEND missing OpenMP)
      endif()
    elseif(need MATCHES "^(oneapi/)?tbb/")
      if(NOT DEEPREC_HAVE_TBB)
        list(APPEND missing oneTBB)
      endif()
    elseif(need MATCHES "^(arrow|parquet)/")
      if(NOT TARGET deeprec::arrow)
        list(APPEND missing Arrow)
      endif()
    elseif(need STREQUAL "mpi.h")
      if(NOT TARGET deeprec::mpi)
        list(APPEND missing MPI)
      endif()
    elseif(need MATCHES "^(ATen/|torch/|c10/|dlpack/|taskflow/)")
      string(MAKE_C_IDENTIFIER "DEEPREC_HAVE_${need}" have)
      find_path(${have} "${need}" DOC "Folder of <${need}>")
      mark_as_advanced(${have})
      if(NOT ${have})
        list(APPEND missing "<${need}>")
      endif()
    endif()
  endforeach()
  if(header MATCHES "interop/eigen_thread_pool" AND NOT DEEPREC_HAVE_EIGEN_THREAD_POOL)
    list(APPEND missing "Eigen's ThreadPool module") # named inside of #if: it has moved once
  endif()
  list(REMOVE_DUPLICATES missing)
  set(${out} "${missing}" PARENT_SCOPE)
endfunction()

# Writes <file> unless it says that already.
function(deeprec_write file text)
  file(CONFIGURE OUTPUT "${file}" CONTENT "${text}" @ONLY)
endfunction()

# Sets <out> to the names of all units, NAME is the file <folder>/alone/NAME.cpp; and <out_poisoned> to those in
# <folder>/poisoned: "all", and those of a header that needs flags of its own.
function(deeprec_generate_header_units folder out out_poisoned)
  file(GLOB_RECURSE headers RELATIVE "${PROJECT_SOURCE_DIR}/include" CONFIGURE_DEPENDS
       "${PROJECT_SOURCE_DIR}/include/deeprec/*.hpp")
  file(GLOB_RECURSE inner RELATIVE "${PROJECT_SOURCE_DIR}/include"
       "${PROJECT_SOURCE_DIR}/include/deeprec/*.inl")
  foreach(header IN LISTS inner)
    deeprec_scan_header("${header}")
  endforeach()
  set(units)
  set(poisoned all)
  set(all "#include \"${folder}/foreign.hpp\"\n#include \"poison.hpp\"\n")
  foreach(header IN LISTS headers)
    if(header MATCHES "/end_[^/]*$|/foreach_region[.]hpp$")
      continue()
    endif()
    deeprec_missing_for("${header}" missing)
    if(missing)
      list(JOIN missing ", " missing)
      message(STATUS "deeprec: ${header} is not tested, for want of ${missing}")
      continue()
    endif()
    set(text "#include <${header}>\n#include <${header}>\n")
    if(header MATCHES "/begin_[^/]*$")
      string(REPLACE "/begin_" "/end_" end "${header}")
      set(text "#include <deeprec/core/config.hpp>\n")
      foreach(body IN ITEMS once twice)
        string(APPEND text "#include <${header}>\ninline void ${body}() {}\n#include <${end}>\n")
      endforeach()
    endif()
    string(REGEX REPLACE "^deeprec/(.*)[.]hpp$" "\\1" unit "${header}")
    deeprec_write("${folder}/alone/${unit}.cpp" "${text}")
    list(APPEND units "${unit}")
    deeprec_flags_of_unit("${unit}" flags)
    if(flags)
      string(PREPEND text "#include \"${folder}/foreign.hpp\"\n#include \"poison.hpp\"\n")
      deeprec_write("${folder}/poisoned/${unit}.cpp" "${text}")
      list(APPEND poisoned "${unit}")
    else()
      string(APPEND all "${text}")
    endif()
  endforeach()
  deeprec_write("${folder}/poisoned/all.cpp" "${all}")

  get_property(foreign GLOBAL PROPERTY deeprec_foreign_headers)
  list(REMOVE_DUPLICATES foreign)
  list(SORT foreign)
  set(text "// Every foreign header that deeprec includes anywhere, as far as it exists here.\n")
  foreach(header IN LISTS foreign)
    # These exist for other targets too, and refuse to be included there; or they need nvcc.
    if(NOT header MATCHES "^(arm_|intrin[.]h|cub/|thrust/|cuda/|cooperative_groups|windows[.]h)")
      string(APPEND text "#if __has_include(<${header}>)\n#include <${header}>\n#endif\n")
    endif()
  endforeach()
  deeprec_write("${folder}/foreign.hpp" "${text}")
  set(${out} "${units}" PARENT_SCOPE)
  set(${out_poisoned} "${poisoned}" PARENT_SCOPE)
endfunction()

# deeprec_compile_with(<compiler> <source> <object> <dependencies> <flag>...): one more object, made by
# a compiler that CMake is not using, against the same foreign headers.
function(deeprec_compile_with compiler source object depends)
  set(folders)
  set(definitions)
  foreach(target IN ITEMS Eigen3::Eigen xsimd DNNL::dnnl CUDA::cudart deeprec::mpi deeprec::arrow)
    if(TARGET ${target})
      list(APPEND folders "$<TARGET_PROPERTY:${target},INTERFACE_INCLUDE_DIRECTORIES>")
    endif()
  endforeach()
  foreach(component IN ITEMS onednn zlib zstd farmhash mpi cuda nccl)
    if(TARGET deeprec::${component})
      list(APPEND definitions
           "$<TARGET_PROPERTY:deeprec::${component},INTERFACE_COMPILE_DEFINITIONS>")
    endif()
  endforeach()
  set(folders "$<REMOVE_DUPLICATES:$<FILTER:${folders},EXCLUDE,^(/usr/include/?)?$>>")
  cmake_path(GET object PARENT_PATH folder)
  file(MAKE_DIRECTORY "${folder}")
  add_custom_command(
    OUTPUT "${object}"
    COMMAND
      ${deeprec_launcher} "${compiler}" -std=c++20 ${DEEPREC_HEADER_FLAGS}
      "-I${PROJECT_SOURCE_DIR}/include" "$<$<BOOL:${folders}>:-isystem$<JOIN:${folders},;-isystem>>"
      "$<$<BOOL:${definitions}>:-D$<JOIN:${definitions},;-D>>" ${ARGN} -MD -MF "${object}.d" -MT
      "${object}" -c "${source}" -o "${object}"
    DEPENDS "${source}" ${depends}
    DEPFILE "${object}.d"
    COMMENT "Building ${object} with the second compiler"
    COMMAND_EXPAND_LISTS VERBATIM)
endfunction()
