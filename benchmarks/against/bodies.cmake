# deeprec_bodies(<target> <benchmarks/SUITE/SUITE_bodies.cpp>)
#
# A shared object for benchmarks/against, built as users build: the flags of the build type. Functions begin at lines,
# so that a change elsewhere in the object moves no loop to another place in its line. All it exports is its entry, so
# that of two commits' objects in one process neither calls the other's copies.
function(deeprec_bodies target source)
  cmake_path(GET source PARENT_PATH folder)
  cmake_path(GET folder PARENT_PATH benchmarks)
  add_library(${target} MODULE EXCLUDE_FROM_ALL "${source}")
  target_include_directories(${target} PRIVATE "${benchmarks}")
  target_compile_options(${target} PRIVATE -falign-functions=64)
  target_link_libraries(${target} PRIVATE deeprec_dev)
  if(TARGET deeprec::onednn)
    target_link_libraries(${target} PRIVATE deeprec::onednn)
  endif()
  set(own "${CMAKE_CURRENT_FUNCTION_LIST_DIR}")
  target_link_options(${target} PRIVATE "LINKER:--version-script=${own}/bodies.map" LINKER:-z,defs)
  set_target_properties(
    ${target}
    PROPERTIES PREFIX ""
               CXX_VISIBILITY_PRESET hidden
               VISIBILITY_INLINES_HIDDEN ON
               LINK_DEPENDS "${own}/bodies.map"
               LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bodies")
  add_custom_command(
    TARGET ${target}
    POST_BUILD
    COMMAND "${CMAKE_COMMAND}" "-DNM=${CMAKE_NM}" "-DOBJECT=$<TARGET_FILE:${target}>" -P "${own}/exports.cmake"
    VERBATIM)
endfunction()
