# cmake -DROOT=<repository> -P public_names.cmake
# A header that users include is about what they use: it defines a name outside of `namespace detail`, and less than a third of its
# lines lie in that namespace. What is private stands in detail/ beside it. Not asked: the folders of private headers, and umbrellas.
# No header, private ones included, has more than 400 lines: it has one subject.

include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")

set(private "(^|/)(support|simd|detail|kernels)/")
set(no_names
    core/config.hpp # macros
    optim/optimizers.hpp # includes the optimizers, with the table of them
)

# Their private parts need the types above them, and nobody else does.
set(mostly_private dense/gemm/cuda_cublaslt_gemm.hpp dense/losses/logistic_loss.hpp ops/unique.hpp)

set(most_lines 400)

foreach(header IN LISTS HEADERS)
  read_lines("${header}" lines)
  list(LENGTH lines all)
  math(EXPR all "${all} - 1") # read_lines finds one more behind the last newline
  if(all GREATER most_lines)
    fault("${header} has ${all} lines, more than ${most_lines}: a part that has a name of its own belongs into a header of its own")
  endif()
  string(REGEX REPLACE "[.](hpp|cuh)$" "" folder "${header}")
  if(NOT header MATCHES "[.](hpp|cuh)$" OR header MATCHES "${private}" OR IS_DIRECTORY "${INCLUDE}/${folder}"
     OR folder STREQUAL "deeprec" OR header IN_LIST no_names OR header IN_LIST mostly_private)
    continue()
  endif()
  set(of_detail 0)
  set(inside FALSE)
  set(named FALSE)
  foreach(line IN LISTS lines)
    if(line MATCHES "^namespace.*detail {")
      set(inside TRUE)
    endif()
    if(inside)
      math(EXPR of_detail "${of_detail} + 1")
    elseif(line MATCHES "^(  nodiscard  +)?[A-Za-z_]+[ <:]" AND NOT line MATCHES "^(namespace|extern|static_assert|requires) "
           AND NOT line MATCHES "^(class|struct) [a-z_]+; *$")
      set(named TRUE)
    endif()
    if(line MATCHES "^}.*// namespace.*detail")
      set(inside FALSE)
    endif()
  endforeach()
  math(EXPR thrice "3 * ${of_detail}")
  if(NOT named)
    fault("${header} defines no public name: it belongs into detail/")
  elseif(NOT thrice LESS all)
    fault("${header}: ${of_detail} of its ${all} lines lie in namespace detail: what is private belongs into detail/ beside it")
  endif()
endforeach()
report_faults()
