# deeprec::zstd: the header that calls libzstd, data/zstd_stream.hpp. Read by the build and by deeprecConfig.
# Found as a file: not every package of libzstd has a package file for CMake.

find_path(DEEPREC_ZSTD_INCLUDE_DIR zstd_errors.h)
find_library(DEEPREC_ZSTD_LIBRARY zstd)
mark_as_advanced(DEEPREC_ZSTD_INCLUDE_DIR DEEPREC_ZSTD_LIBRARY)
if(DEEPREC_ZSTD_INCLUDE_DIR AND DEEPREC_ZSTD_LIBRARY AND NOT TARGET deeprec::zstd)
  add_library(deeprec::zstd INTERFACE IMPORTED GLOBAL)
  target_include_directories(deeprec::zstd SYSTEM INTERFACE "${DEEPREC_ZSTD_INCLUDE_DIR}")
  target_link_libraries(deeprec::zstd INTERFACE deeprec::deeprec "${DEEPREC_ZSTD_LIBRARY}")
  target_compile_definitions(deeprec::zstd INTERFACE DEEPREC_WITH_ZSTD=1)
endif()
