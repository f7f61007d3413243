# cmake -P cmake/list_headers.cmake            rewrites cmake/headers.cmake from the tree
# cmake -DCHECK=ON -P cmake/list_headers.cmake fails if the list and the tree differ

cmake_minimum_required(VERSION 3.24)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
if(NOT DEFINED LIST)
  set(LIST "${CMAKE_CURRENT_LIST_DIR}/headers.cmake")
endif()

file(GLOB_RECURSE headers RELATIVE "${root}" "${root}/include/deeprec/*.hpp"
     "${root}/include/deeprec/*.cuh" "${root}/include/deeprec/*.inl")
list(SORT headers)
list(JOIN headers "\n    " lines)
set(text "# Every public header. Written by: cmake -P cmake/list_headers.cmake\n\n")
string(APPEND text "set(DEEPREC_HEADERS\n    ${lines})\n")

if(CHECK)
  file(READ "${LIST}" present)
  if(NOT present STREQUAL text)
    message(FATAL_ERROR "${LIST} does not list the headers of the tree. "
                        "Fix: cmake -P cmake/list_headers.cmake")
  endif()
else()
  file(WRITE "${LIST}" "${text}")
endif()
