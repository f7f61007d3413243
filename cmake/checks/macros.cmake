# cmake -DROOT=<repository> -P macros.cmake
# Macros are defined in these headers only, and begin with DEEPREC_. Any header may name a source of regions on the line before it
# includes simd/foreach_region.hpp, which undefines that macro.

include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")

# A region is host code, so its beginning redefines DEEPREC_HD.
set(allowed "^core/config[.]hpp$|^simd/begin_[^/]*$")

foreach(header IN LISTS HEADERS)
  read_lines("${header}" lines)
  set(opened FALSE)
  foreach(line IN LISTS lines)
    if(opened AND NOT line MATCHES "^[ \t]*#[ \t]*include <deeprec/simd/foreach_region[.]hpp>")
      fault("${header} defines DEEPREC_REGION_SOURCE and does not include simd/foreach_region.hpp on the next line")
    endif()
    set(opened FALSE)
    if(line MATCHES "^[ \t]*#[ \t]*define[ \t]+([A-Za-z0-9_]+)")
      set(name "${CMAKE_MATCH_1}")
      if(name STREQUAL "DEEPREC_REGION_SOURCE")
        set(opened TRUE)
      elseif(NOT header MATCHES "${allowed}")
        fault("${header} defines the macro ${name}; core/config.hpp is the place for macros")
      elseif(NOT name MATCHES "^DEEPREC_")
        fault("${header} defines the macro ${name}, which does not begin with DEEPREC_")
      endif()
    endif()
  endforeach()
endforeach()
report_faults()
