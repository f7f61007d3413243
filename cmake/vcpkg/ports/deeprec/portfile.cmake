# Headers, and one archive: units with contracts, as of a debug build, compile their own kernels.
set(VCPKG_BUILD_TYPE release)

# An overlay port: it installs the checkout that it lies in.
cmake_path(SET SOURCE_PATH NORMALIZE "${CMAKE_CURRENT_LIST_DIR}/../../../..")

vcpkg_check_features(
  OUT_FEATURE_OPTIONS FEATURE_OPTIONS
  FEATURES
    cuda DEEPREC_CUDA
    farmhash DEEPREC_FARMHASH
    kernels DEEPREC_KERNELS
    mpi DEEPREC_MPI
    onednn DEEPREC_ONEDNN
    zlib DEEPREC_ZLIB
    zstd DEEPREC_ZSTD)

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    ${FEATURE_OPTIONS}
    -DDEEPREC_INSTALL=ON
    -DDEEPREC_BUILD_TESTS=OFF
    -DDEEPREC_BUILD_BENCHMARKS=OFF
    -DDEEPREC_BUILD_EXAMPLES=OFF
    -DDEEPREC_BUILD_DOCS=OFF
    -DFETCHCONTENT_FULLY_DISCONNECTED=ON)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH share/cmake/deeprec)
vcpkg_fixup_pkgconfig()

file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/share/doc")
if(NOT "kernels" IN_LIST FEATURES)
  file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/lib")
endif()
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
