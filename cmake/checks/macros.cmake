# cmake -DROOT=<repository> -P macros.cmake
# Macros are defined in these headers only, and begin with DEEPREC_.

include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")

set(allowed core/config.hpp)

foreach(header IN LISTS HEADERS)
  read_lines("${header}" lines)
  foreach(line IN LISTS lines)
    if(line MATCHES "^[ \t]*#[ \t]*define[ \t]+([A-Za-z0-9_]+)")
      set(name "${CMAKE_MATCH_1}")
      if(NOT header IN_LIST allowed)
        fault("${header} defines the macro ${name}; only ${allowed} may")
      elseif(NOT name MATCHES "^DEEPREC_")
        fault("${header} defines the macro ${name}, which does not begin with DEEPREC_")
      endif()
    endif()
  endforeach()
endforeach()
report_faults()
