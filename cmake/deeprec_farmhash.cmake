# deeprec::farmhash: the header that calls FarmHash, data/farmhash.hpp. Read by the build and by deeprecConfig.
# Found as a file: FarmHash has no package file for CMake.

find_path(DEEPREC_FARMHASH_INCLUDE_DIR farmhash.h)
find_library(DEEPREC_FARMHASH_LIBRARY farmhash)
mark_as_advanced(DEEPREC_FARMHASH_INCLUDE_DIR DEEPREC_FARMHASH_LIBRARY)
if(DEEPREC_FARMHASH_INCLUDE_DIR AND DEEPREC_FARMHASH_LIBRARY AND NOT TARGET deeprec::farmhash)
  add_library(deeprec::farmhash INTERFACE IMPORTED GLOBAL)
  target_include_directories(deeprec::farmhash SYSTEM INTERFACE "${DEEPREC_FARMHASH_INCLUDE_DIR}")
  target_link_libraries(deeprec::farmhash INTERFACE deeprec::deeprec "${DEEPREC_FARMHASH_LIBRARY}")
  target_compile_definitions(deeprec::farmhash INTERFACE DEEPREC_WITH_FARMHASH=1)
endif()
