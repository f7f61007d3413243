# deeprec::arrow: the header that calls Arrow's C++ library and Parquet, data/parquet_reader.hpp. Read by the build and by
# deeprecConfig. By the package files of both, or as files in DEEPREC_ARROW_ROOT: the folder of Python's package has them, with
# the version behind the name.

set(DEEPREC_ARROW_ROOT "" CACHE PATH "A folder with include/parquet, libarrow and libparquet, such as that of Python's pyarrow")
if(NOT DEEPREC_ARROW_ROOT)
  find_package(Parquet CONFIG QUIET)
endif()
if(TARGET Parquet::parquet_shared AND NOT TARGET deeprec::arrow)
  add_library(deeprec::arrow INTERFACE IMPORTED GLOBAL)
  target_link_libraries(deeprec::arrow INTERFACE deeprec::deeprec Parquet::parquet_shared)
elseif(DEEPREC_ARROW_ROOT AND NOT TARGET deeprec::arrow)
  find_path(DEEPREC_ARROW_INCLUDE_DIR parquet/arrow/reader.h PATHS "${DEEPREC_ARROW_ROOT}/include" NO_DEFAULT_PATH)
  file(GLOB deeprec_arrow_libraries "${DEEPREC_ARROW_ROOT}/libparquet.so*" "${DEEPREC_ARROW_ROOT}/libarrow.so*"
       "${DEEPREC_ARROW_ROOT}/lib/libparquet.so" "${DEEPREC_ARROW_ROOT}/lib/libarrow.so")
  mark_as_advanced(DEEPREC_ARROW_INCLUDE_DIR)
  if(DEEPREC_ARROW_INCLUDE_DIR AND deeprec_arrow_libraries)
    add_library(deeprec::arrow INTERFACE IMPORTED GLOBAL)
    target_include_directories(deeprec::arrow SYSTEM INTERFACE "${DEEPREC_ARROW_INCLUDE_DIR}")
    target_link_libraries(deeprec::arrow INTERFACE deeprec::deeprec ${deeprec_arrow_libraries})
  endif()
endif()
