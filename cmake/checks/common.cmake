# Read by the checks of the source text. ROOT is a folder with include/deeprec/ in it.

cmake_minimum_required(VERSION 3.24)
get_filename_component(INCLUDE "${ROOT}/include/deeprec" ABSOLUTE)
file(GLOB_RECURSE HEADERS RELATIVE "${INCLUDE}" "${INCLUDE}/*.hpp" "${INCLUDE}/*.cuh"
     "${INCLUDE}/*.inl")
list(SORT HEADERS)
if(NOT HEADERS)
  message(FATAL_ERROR "no headers in ${INCLUDE}")
endif()
set(FAULTS)

# The lines of a header, as a list. CMake's lists give ; [ ] a meaning, so these become blanks.
function(read_lines header out)
  file(READ "${INCLUDE}/${header}" text)
  string(REGEX REPLACE "[][;\\]" " " text "${text}")
  string(REPLACE "\n" " ;" text "${text}") # a blank, so that no line is an empty element
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

macro(fault)
  string(CONCAT one_fault ${ARGN})
  string(APPEND FAULTS "\n  ${one_fault}")
endmacro()

macro(report_faults)
  if(FAULTS)
    message(FATAL_ERROR "${FAULTS}")
  endif()
endmacro()
