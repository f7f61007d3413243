# What a lane builds and runs.
#
#   release   the host's unit tests, examples, checks of the source text, code that must not compile
#   extended  (with scripts/test.sh all) the rest of the release build: headers as headers, with both compilers and nvcc;
#             device code on the host; another architecture; packages; fuzz targets; benchmarks
#   asan, tsan   unit tests under sanitizers
#   aarch64, nvcc, host_cuda   what runs or compiles some of the unit tests once more
#
# scripts/test.sh takes the extended, asan and tsan lanes in parts, which tests/parts.txt lists. A part is a label of its tests and a
# target part_<name>, which builds what they need.

if(DEEPREC_SANITIZE MATCHES "address")
  set(deeprec_lane asan)
elseif(DEEPREC_SANITIZE MATCHES "thread")
  set(deeprec_lane tsan)
else()
  set(deeprec_lane release)
endif()
add_custom_target(release_tests)

# The parts of this build tree.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS parts.txt)
file(STRINGS parts.txt deeprec_parts REGEX "^[a-z0-9_]+ +${deeprec_lane} ")
list(TRANSFORM deeprec_parts REPLACE " .*" "")
list(REMOVE_ITEM deeprec_parts release)
set_property(GLOBAL PROPERTY deeprec_parts ${deeprec_parts})
foreach(part IN LISTS deeprec_parts)
  add_custom_target(part_${part})
endforeach()

# deeprec_part(<part> [TESTS <test>...] [TARGETS <target>...]): these tests and targets of the calling folder belong to the part, unless
# they belong to another one.
function(deeprec_part part)
  cmake_parse_arguments(PARSE_ARGV 1 of "" "" "TESTS;TARGETS")
  get_property(parts GLOBAL PROPERTY deeprec_parts)
  if(NOT part IN_LIST parts)
    message(FATAL_ERROR "deeprec_part(${part}): tests/parts.txt must have such a part of this lane (it has ${parts})")
  endif()
  foreach(test IN LISTS of_TESTS)
    get_property(labels TEST ${test} PROPERTY LABELS)
    if(NOT "extended" IN_LIST labels)
      set_property(TEST ${test} APPEND PROPERTY LABELS extended ${part})
    endif()
  endforeach()
  foreach(target IN LISTS of_TARGETS)
    get_target_property(other ${target} deeprec_part)
    get_target_property(excluded ${target} EXCLUDE_FROM_ALL)
    if(NOT other AND NOT excluded)
      set_target_properties(${target} PROPERTIES deeprec_part ${part})
      add_dependencies(part_${part} ${target})
    endif()
  endforeach()
endfunction()

# deeprec_part_of_folder(<part>): the tests and targets of the calling folder, and targets of folders below, that have no part yet.
function(deeprec_part_of_folder part)
  get_property(tests DIRECTORY PROPERTY TESTS)
  set(folders "${CMAKE_CURRENT_SOURCE_DIR}")
  set(targets)
  while(folders)
    list(POP_FRONT folders folder)
    get_property(below DIRECTORY "${folder}" PROPERTY SUBDIRECTORIES)
    list(APPEND folders ${below})
    get_property(more DIRECTORY "${folder}" PROPERTY BUILDSYSTEM_TARGETS)
    list(APPEND targets ${more})
  endwhile()
  deeprec_part(${part} TESTS ${tests} TARGETS ${targets})
endfunction()

# Puts the tests and targets of a layer into its part under a sanitizer: the one that lists the layer.
function(deeprec_part_of_layer layer)
  if(deeprec_lane STREQUAL "release")
    return()
  endif()
  file(STRINGS "${PROJECT_SOURCE_DIR}/tests/parts.txt" lines REGEX "^[a-z0-9_]+ +${deeprec_lane} .* ${layer}( |$)")
  if(NOT lines)
    message(FATAL_ERROR "tests/parts.txt must have a part of the lane ${deeprec_lane} with the layer ${layer}")
  endif()
  string(REGEX REPLACE " .*" "" part "${lines}")
  deeprec_part(${part} ${ARGN})
endfunction()

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
