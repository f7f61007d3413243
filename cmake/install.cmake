include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(deeprec_package_dir "${CMAKE_INSTALL_DATADIR}/cmake/deeprec")

install(TARGETS deeprec EXPORT deeprec FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(
  EXPORT deeprec
  FILE deeprecTargets.cmake
  NAMESPACE deeprec::
  DESTINATION "${deeprec_package_dir}")

if(DEEPREC_KERNELS)
  install(TARGETS deeprec_kernels EXPORT deeprec_kernels ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(
    EXPORT deeprec_kernels
    FILE deeprec_kernelsTargets.cmake
    NAMESPACE deeprec::
    DESTINATION "${deeprec_package_dir}")
endif()

configure_package_config_file(
  "${CMAKE_CURRENT_LIST_DIR}/deeprecConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/package/deeprecConfig.cmake" INSTALL_DESTINATION "${deeprec_package_dir}")
write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/package/deeprecConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion
  ARCH_INDEPENDENT)
install(
  FILES "${PROJECT_BINARY_DIR}/package/deeprecConfig.cmake"
        "${PROJECT_BINARY_DIR}/package/deeprecConfigVersion.cmake"
        "${CMAKE_CURRENT_LIST_DIR}/deeprec_xsimd.cmake"
        "${CMAKE_CURRENT_LIST_DIR}/deeprec_onednn.cmake"
        "${CMAKE_CURRENT_LIST_DIR}/deeprec_zlib.cmake"
        "${CMAKE_CURRENT_LIST_DIR}/deeprec_zstd.cmake"
        "${CMAKE_CURRENT_LIST_DIR}/deeprec_farmhash.cmake"
        "${CMAKE_CURRENT_LIST_DIR}/deeprec_mpi.cmake"
        "${CMAKE_CURRENT_LIST_DIR}/deeprec_arrow.cmake"
        "${CMAKE_CURRENT_LIST_DIR}/deeprec_cuda.cmake"
  DESTINATION "${deeprec_package_dir}")

configure_file("${CMAKE_CURRENT_LIST_DIR}/deeprec.pc.in" "${PROJECT_BINARY_DIR}/package/deeprec.pc"
               @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/package/deeprec.pc"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/pkgconfig")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/deeprec")
