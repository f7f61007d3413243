# cmake -DDOXYGEN=program -DDOXYFILE=file -DPAGES=folder -P docs_pages.cmake
# Runs Doxygen, which fails on its warnings. Then fails where the pages show namespaces that users never write, or private
# names, or where they lack a verb.
file(REMOVE_RECURSE "${PAGES}") # pages of an earlier run would stay
execute_process(COMMAND "${DOXYGEN}" "${DOXYFILE}" RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "doxygen failed: ${failed}")
endif()
file(GLOB wrong "${PAGES}/*DEEPREC__*" "${PAGES}/*deeprec_1_1detail*")
if(wrong)
  message(FATAL_ERROR "pages of private namespaces: ${wrong}")
endif()
file(READ "${PAGES}/namespacedeeprec.html" page)
foreach(name IN ITEMS lookup update gemm feature_group matrix_view)
  if(NOT page MATCHES ">${name}<")
    message(FATAL_ERROR "namespacedeeprec.html lacks ${name}")
  endif()
endforeach()
if(page MATCHES "detail::unit|DEEPREC_UNIT")
  message(FATAL_ERROR "namespacedeeprec.html shows a parameter that nobody passes")
endif()
