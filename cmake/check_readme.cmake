# cmake -DROOT=<repository> -P check_readme.cmake
# In README.md the fenced block after <!-- NAME --> is examples/NAME.cpp, for the quickstart and the six programs, and the one
# after <!-- quickstart output --> is examples/quickstart.out.

cmake_minimum_required(VERSION 3.24)
file(READ "${ROOT}/README.md" readme)

function(check_block marker file)
  string(FIND "${readme}" "<!-- ${marker} -->" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "README.md has no <!-- ${marker} -->")
  endif()
  string(SUBSTRING "${readme}" ${at} -1 rest)
  if(NOT rest MATCHES "^<!-- [^\n]* -->\n+```[a-z]*\n")
    message(FATAL_ERROR "README.md: no fenced block follows <!-- ${marker} -->")
  endif()
  string(LENGTH "${CMAKE_MATCH_0}" start)
  string(SUBSTRING "${rest}" ${start} -1 rest)
  string(FIND "${rest}" "\n```" end)
  math(EXPR end "${end} + 1")
  string(SUBSTRING "${rest}" 0 ${end} block)
  file(READ "${ROOT}/examples/${file}" expected)
  if(NOT block STREQUAL expected)
    message(FATAL_ERROR "README.md, <!-- ${marker} -->, is not examples/${file}. Fix: copy it there")
  endif()
endfunction()

foreach(name IN ITEMS quickstart lookup_tables train_rows save_and_load read_log train_stack run_pipeline)
  check_block("${name}" ${name}.cpp)
endforeach()
check_block("quickstart output" quickstart.out)
