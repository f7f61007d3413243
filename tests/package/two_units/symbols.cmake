# cmake -DPLAIN=<object> -DNATIVE=<object> -DNM=... -DREADELF=... -P symbols.cmake

# The kernels of an object: functions of deeprec whose name begins with an isa_... namespace, and loops that are
# compiled with the unit's flags, in a unit_... namespace of detail.
set(kernel "_ZNK?7deeprec[0-9]+v[0-9a-z_]*[0-9]+isa_[A-Za-z0-9_.]*")
set(loop "_ZNK?7deeprec[0-9]+v[0-9a-z_]*6detail[0-9]+unit_[A-Za-z0-9_.]*")
function(kernels_of object out)
  execute_process(COMMAND "${NM}" --defined-only "${object}" OUTPUT_VARIABLE said
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL " [A-Za-z] (${kernel}|${loop})" names "${said}")
  list(FILTER names EXCLUDE REGEX "^ [a-z] ") # a symbol of the object alone
  list(TRANSFORM names REPLACE "^ [A-Z] " "")
  if(NOT names)
    message(FATAL_ERROR "no kernels in ${object}:\n${said}")
  endif()
  foreach(wanted IN ITEMS isa_ add_squares relu_rows relu_rows_backward add_losses loss_gradients
                          dot_triangle dot_triangle_backward row_loops6encode row_loops6decode row_loops11first_unfit)
    if(NOT names MATCHES "[0-9]${wanted}")
      message(FATAL_ERROR "no ${wanted} of the unit's own in ${object}:\n${names}")
    endif()
  endforeach()
  set(${out} "${names}" PARENT_SCOPE)
endfunction()

kernels_of("${PLAIN}" plain)
kernels_of("${NATIVE}" native)
set(shared ${plain})
list(REMOVE_ITEM shared ${native})
list(LENGTH plain all)
list(LENGTH shared apart)
if(NOT apart EQUAL all)
  list(REMOVE_ITEM plain ${shared})
  list(JOIN plain "\n" plain)
  message(FATAL_ERROR "kernels that both units define:\n${plain}")
endif()

foreach(object IN ITEMS "${PLAIN}" "${NATIVE}")
  execute_process(COMMAND "${READELF}" --symbols --wide "${object}" OUTPUT_VARIABLE said
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "(WEAK|GLOBAL) +(DEFAULT|PROTECTED) +[0-9]+ ${kernel}" visible "${said}")
  if(visible)
    message(FATAL_ERROR "kernels that are not hidden in ${object}:\n${visible}")
  endif()
endforeach()
