# deeprec::onednn: the headers that call oneDNN. Read by the build and by deeprecConfig.
#
# When oneDNN runs on OpenMP, the very runtime library that it was linked with is linked as well
# (so that omp_set_num_threads reaches it), but no compiler flag is added to users.

if(NOT TARGET DNNL::dnnl)
  find_package(dnnl CONFIG QUIET)
endif()
if(TARGET DNNL::dnnl AND NOT dnnl_VERSION VERSION_LESS 2.6 AND NOT TARGET deeprec::onednn)
  add_library(deeprec::onednn INTERFACE IMPORTED GLOBAL)
  target_link_libraries(deeprec::onednn INTERFACE deeprec::deeprec DNNL::dnnl)
  target_compile_definitions(deeprec::onednn INTERFACE DEEPREC_WITH_ONEDNN=1)

  if(DNNL_CPU_RUNTIME STREQUAL "OMP")
    if(NOT DEEPREC_ONEDNN_OPENMP)
      get_target_property(deeprec_dnnl_file DNNL::dnnl IMPORTED_LOCATION)
      if(NOT deeprec_dnnl_file)
        get_target_property(deeprec_dnnl_config DNNL::dnnl IMPORTED_CONFIGURATIONS)
        list(GET deeprec_dnnl_config 0 deeprec_dnnl_config)
        get_target_property(deeprec_dnnl_file DNNL::dnnl IMPORTED_LOCATION_${deeprec_dnnl_config})
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
