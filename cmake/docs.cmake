# The target docs: the reference pages, in docs/html of the build folder.

find_package(Doxygen REQUIRED)
configure_file("${CMAKE_CURRENT_LIST_DIR}/Doxyfile.in" "${PROJECT_BINARY_DIR}/Doxyfile" @ONLY)
file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/docs")
add_custom_target(
  docs
  COMMAND Doxygen::doxygen "${PROJECT_BINARY_DIR}/Doxyfile"
  WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
  COMMENT "Writing the reference pages to ${PROJECT_BINARY_DIR}/docs/html"
  VERBATIM)
