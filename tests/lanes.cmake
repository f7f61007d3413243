# What a lane builds and runs.
#
#   release   the host's unit tests, examples, checks of the source text, code that must not compile
#   extended  (with scripts/test.sh all) the rest of the release build: headers as headers, with both compilers and nvcc;
#             device code on the host; another architecture; packages; fuzz targets; benchmarks
#   asan, tsan   unit tests under sanitizers
#   aarch64, nvcc, host_cuda   parts of the extended lane that run or compile some of the unit tests once more

if(DEEPREC_SANITIZE MATCHES "address")
  set(deeprec_lane asan)
elseif(DEEPREC_SANITIZE MATCHES "thread")
  set(deeprec_lane tsan)
else()
  set(deeprec_lane release)
endif()
add_custom_target(release_tests)

# deeprec_not_in("<lanes>" "<reason>" <unit>...), in tests/<layer>/lanes.cmake: these units of the layer, file names without
# their extensions, are not part of the lanes.
function(deeprec_not_in lanes reason)
  if(NOT lanes OR NOT reason)
    message(FATAL_ERROR "deeprec_not_in(\"${lanes}\" \"${reason}\" ${ARGN}): there must be lanes and a reason")
  endif()
  cmake_path(GET CMAKE_CURRENT_LIST_DIR FILENAME layer)
  separate_arguments(lanes)
  foreach(lane IN LISTS lanes)
    if(NOT lane MATCHES "^(release|asan|tsan|aarch64|nvcc|host_cuda)$")
      message(FATAL_ERROR "tests/${layer}/lanes.cmake: \"${lane}\" must be a lane that leaves units out")
    endif()
  endforeach()
  foreach(unit IN LISTS ARGN)
    if(NOT EXISTS "${CMAKE_CURRENT_LIST_DIR}/${unit}.cpp" AND NOT EXISTS "${CMAKE_CURRENT_LIST_DIR}/${unit}.cu")
      message(FATAL_ERROR "tests/${layer}/lanes.cmake: ${unit} must be a unit of tests/${layer}")
    endif()
    foreach(lane IN LISTS lanes)
      set_property(GLOBAL APPEND PROPERTY deeprec_not_in_${lane} "${layer}/${unit}")
    endforeach()
  endforeach()
endfunction()

file(GLOB lists CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/*/lanes.cmake")
foreach(list IN LISTS lists)
  include("${list}")
endforeach()

# Sets <out> to the sources of a layer that are part of a lane.
function(deeprec_units_of_lane out layer lane)
  get_property(left_out GLOBAL PROPERTY deeprec_not_in_${lane})
  set(kept)
  foreach(source IN LISTS ARGN)
    cmake_path(GET source STEM unit)
    if(NOT "${layer}/${unit}" IN_LIST left_out)
      list(APPEND kept "${source}")
    endif()
  endforeach()
  set(${out} "${kept}" PARENT_SCOPE)
endfunction()

# Gives every test of the calling folder the label extended.
function(deeprec_extended_tests)
  get_property(tests DIRECTORY PROPERTY TESTS)
  foreach(test IN LISTS tests)
    set_property(TEST ${test} APPEND PROPERTY LABELS extended)
  endforeach()
endfunction()

# deeprec_ran("<what>" <compiler> yes|no|absent): notes, for the test docs_compilers, that a part of the tests runs with a
# compiler, does not, or would if this machine had its tools. <compiler> is a path, or a column of docs/compilers.md.
function(deeprec_ran what compiler word)
  if(EXISTS "${compiler}")
    cmake_path(GET compiler FILENAME name)
    execute_process(COMMAND "${compiler}" -dumpversion OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE)
    string(REGEX REPLACE "[.].*" "" version "${version}")
    if(name MATCHES "clang")
      set(compiler "clang ${version}")
    else()
      set(compiler "g++ ${version}")
    endif()
  endif()
  set_property(GLOBAL APPEND_STRING PROPERTY deeprec_ran "${what}|${compiler}|${word}\n")
endfunction()
