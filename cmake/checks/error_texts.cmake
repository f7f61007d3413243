# cmake -DROOT=<repository> -P error_texts.cmake
# What a caller did wrong is reported as "function: what must hold": the text of a status with the code shape_mismatch, invalid_value
# or id_out_of_range begins with the name of a function or type and holds "must".

include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")

set(text "errc::(shape_mismatch|invalid_value|id_out_of_range), *\"([^\"]*)\"")
foreach(header IN LISTS HEADERS)
  file(READ "${INCLUDE}/${header}" source)
  string(REGEX REPLACE "[][;\\]" " " source "${source}")
  string(REGEX REPLACE ",[ \n]+\"" ", \"" source "${source}") # the text on a line of its own
  string(REGEX MATCHALL "${text}" found "${source}")
  foreach(one IN LISTS found)
    string(REGEX MATCH "${text}" one "${one}")
    set(said "${CMAKE_MATCH_2}")
    if(NOT said MATCHES "^[a-z_]+(::[a-z_]+)?: .*must")
      fault("${header}: \"${said}\" is not of the form \"function: what must hold\"")
    endif()
  endforeach()
endforeach()
report_faults()
