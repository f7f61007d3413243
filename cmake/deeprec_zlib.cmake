# deeprec::zlib: the header that calls zlib, data/gzip_stream.hpp. Read by the build and by deeprecConfig.

find_package(ZLIB QUIET)
if(TARGET ZLIB::ZLIB AND NOT TARGET deeprec::zlib)
  add_library(deeprec::zlib INTERFACE IMPORTED GLOBAL)
  target_link_libraries(deeprec::zlib INTERFACE deeprec::deeprec ZLIB::ZLIB)
  target_compile_definitions(deeprec::zlib INTERFACE DEEPREC_WITH_ZLIB=1)
endif()
