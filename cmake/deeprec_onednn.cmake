# deeprec::onednn: the headers that call oneDNN. Read by the build and by deeprecConfig.
#
# When oneDNN runs on OpenMP, the very runtime library that it was linked with is linked as well
# (so that omp_set_num_threads reaches it), but no compiler flag is added to users.

# A oneDNN that can use OpenCL (Debian's can) has a package file that stops with an error where OpenCL's
# development files are missing. Host code needs none of them, so such a oneDNN is then taken as the
# shared library that it is.
set(deeprec_dnnl_target DNNL::dnnl)
if(NOT TARGET DNNL::dnnl)
  find_path(DEEPREC_DNNL_INCLUDE_DIR oneapi/dnnl/dnnl_config.h)
  find_library(DEEPREC_DNNL_LIBRARY dnnl)
  mark_as_advanced(DEEPREC_DNNL_INCLUDE_DIR DEEPREC_DNNL_LIBRARY)
  set(deeprec_dnnl_facts)
  if(DEEPREC_DNNL_INCLUDE_DIR)
    file(STRINGS "${DEEPREC_DNNL_INCLUDE_DIR}/oneapi/dnnl/dnnl_config.h" deeprec_dnnl_facts
         REGEX "^#define DNNL_(CPU|GPU)_RUNTIME ")
  endif()
  set(OpenCL_FOUND TRUE)
  if(deeprec_dnnl_facts MATCHES "GPU_RUNTIME DNNL_RUNTIME_OCL")
    find_package(OpenCL QUIET)
  endif()
  if(OpenCL_FOUND)
    find_package(dnnl CONFIG QUIET)
  elseif(DEEPREC_DNNL_LIBRARY AND NOT TARGET deeprec::dnnl)
    set(deeprec_dnnl_target deeprec::dnnl)
    add_library(deeprec::dnnl UNKNOWN IMPORTED GLOBAL)
    set_target_properties(
      deeprec::dnnl PROPERTIES IMPORTED_LOCATION "${DEEPREC_DNNL_LIBRARY}"
                               INTERFACE_INCLUDE_DIRECTORIES "${DEEPREC_DNNL_INCLUDE_DIR}")
    file(STRINGS "${DEEPREC_DNNL_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h" dnnl_VERSION
         REGEX "^#define DNNL_VERSION_(MAJOR|MINOR) ")
    string(REGEX REPLACE "[^;]*MAJOR +([0-9]+);[^;]*MINOR +([0-9]+).*" "\\1.\\2" dnnl_VERSION
                         "${dnnl_VERSION}")
    if(deeprec_dnnl_facts MATCHES "CPU_RUNTIME DNNL_RUNTIME_OMP")
      set(DNNL_CPU_RUNTIME OMP)
    endif()
  endif()
  unset(deeprec_dnnl_facts)
endif()
if(TARGET ${deeprec_dnnl_target} AND NOT dnnl_VERSION VERSION_LESS 2.6 AND NOT TARGET deeprec::onednn)
  add_library(deeprec::onednn INTERFACE IMPORTED GLOBAL)
  target_link_libraries(deeprec::onednn INTERFACE deeprec::deeprec ${deeprec_dnnl_target})
  target_compile_definitions(deeprec::onednn INTERFACE DEEPREC_WITH_ONEDNN=1)

  if(DNNL_CPU_RUNTIME STREQUAL "OMP")
    if(NOT DEEPREC_ONEDNN_OPENMP)
      get_target_property(deeprec_dnnl_file ${deeprec_dnnl_target} IMPORTED_LOCATION)
      if(NOT deeprec_dnnl_file)
        get_target_property(deeprec_dnnl_config ${deeprec_dnnl_target} IMPORTED_CONFIGURATIONS)
        list(GET deeprec_dnnl_config 0 deeprec_dnnl_config)
        get_target_property(deeprec_dnnl_file ${deeprec_dnnl_target} IMPORTED_LOCATION_${deeprec_dnnl_config})
      endif()
      # The name of the runtime as the library's own list of needed libraries spells it.
      file(STRINGS "${deeprec_dnnl_file}" deeprec_dnnl_needs REGEX "^lib(gomp|omp|iomp5)[.]so"
           LIMIT_COUNT 1)
      if(NOT deeprec_dnnl_needs)
        set(deeprec_dnnl_needs gomp omp iomp5)
      endif()
      get_filename_component(deeprec_dnnl_folder "${deeprec_dnnl_file}" DIRECTORY)
      find_library(
        DEEPREC_ONEDNN_OPENMP
        NAMES ${deeprec_dnnl_needs}
        HINTS "${deeprec_dnnl_folder}" ${CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES}
        DOC "The OpenMP runtime library that oneDNN uses")
      mark_as_advanced(DEEPREC_ONEDNN_OPENMP)
      unset(deeprec_dnnl_config)
      unset(deeprec_dnnl_file)
      unset(deeprec_dnnl_folder)
      unset(deeprec_dnnl_needs)
    endif()
    if(DEEPREC_ONEDNN_OPENMP)
      target_link_libraries(deeprec::onednn INTERFACE "${DEEPREC_ONEDNN_OPENMP}")
      target_compile_definitions(deeprec::onednn INTERFACE DEEPREC_WITH_ONEDNN_OPENMP=1)
    endif()
  endif()
endif()
unset(deeprec_dnnl_target)
