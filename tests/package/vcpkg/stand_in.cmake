# cmake -DSOURCE=<repository> -DPREFIX=<folder> -DBUILD=<folder> -DFEATURES=core[,...] ... -P stand_in.cmake
# Runs our portfile without vcpkg: its functions, as far as the portfile uses them, on the local source.

cmake_minimum_required(VERSION 3.24)
set(PORT deeprec)
string(REPLACE "," ";" FEATURES "${FEATURES}")
set(port_dir "${SOURCE}/cmake/vcpkg/ports/${PORT}")
set(CURRENT_PACKAGES_DIR "${PREFIX}")
file(READ "${port_dir}/vcpkg.json" manifest)
string(JSON VERSION GET "${manifest}" version)
file(STRINGS "${SOURCE}/CMakeLists.txt" line REGEX "^  VERSION ${VERSION}$")
if(NOT line)
  message(FATAL_ERROR "vcpkg.json is of version ${VERSION}, the project is not")
endif()

function(vcpkg_check_features)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "OUT_FEATURE_OPTIONS" "FEATURES")
  set(options)
  while(arg_FEATURES)
    list(POP_FRONT arg_FEATURES feature option)
    string(JSON known ERROR_VARIABLE unknown GET "${manifest}" features "${feature}")
    if(unknown)
      message(FATAL_ERROR "vcpkg.json has no feature ${feature}")
    endif()
    if(feature IN_LIST FEATURES)
      list(APPEND options "-D${option}=ON")
    else()
      list(APPEND options "-D${option}=OFF")
    endif()
  endwhile()
  set(${arg_OUT_FEATURE_OPTIONS} "${options}" PARENT_SCOPE)
endfunction()

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -S "${arg_SOURCE_PATH}" -B "${BUILD}" -G "${GENERATOR}"
            "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR}"
            -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_LIBDIR=lib ${arg_OPTIONS}
    OUTPUT_VARIABLE said
    ERROR_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
  if(said MATCHES "Manually-specified variables were not used[^\n]*\n([^\n]*\n)*")
    message(FATAL_ERROR "the portfile sets an option that does not exist:\n${said}")
  endif()
endfunction()

function(vcpkg_cmake_install)
  execute_process(COMMAND "${CMAKE_COMMAND}" --build "${BUILD}" --target install OUTPUT_VARIABLE said
                  ECHO_ERROR_VARIABLE COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Moves the package files to share/<port>, where they lie one folder less deep.
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "CONFIG_PATH" "")
  set(to "${CURRENT_PACKAGES_DIR}/share/${PORT}")
  file(RENAME "${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}" "${to}")
  file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/share/cmake")
  file(GLOB files "${to}/*.cmake")
  foreach(file IN LISTS files)
    file(READ "${file}" text)
    set(up "get_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)\n")
    string(REPLACE "${up}${up}${up}" "${up}${up}" text "${text}")
    string(REPLACE "LIST_DIR}/../../../\"" "LIST_DIR}/../../\"" text "${text}")
    if(text MATCHES "${CURRENT_PACKAGES_DIR}")
      message(FATAL_ERROR "${file} names the folder that it was installed to")
    endif()
    file(WRITE "${file}" "${text}")
  endforeach()
endfunction()

function(vcpkg_fixup_pkgconfig)
  if(NOT EXISTS "${CURRENT_PACKAGES_DIR}/share/pkgconfig/deeprec.pc")
    message(FATAL_ERROR "there is no deeprec.pc")
  endif()
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
  configure_file("${arg_FILE_LIST}" "${CURRENT_PACKAGES_DIR}/share/${PORT}/copyright" COPYONLY)
endfunction()

include("${port_dir}/portfile.cmake")

# What vcpkg itself would complain about.
foreach(needed IN ITEMS include/deeprec/deeprec.hpp share/deeprec/copyright share/deeprec/usage
                        share/deeprec/deeprecConfig.cmake)
  if(NOT EXISTS "${PREFIX}/${needed}")
    message(FATAL_ERROR "the port does not install ${needed}")
  endif()
endforeach()
file(GLOB folders RELATIVE "${PREFIX}" "${PREFIX}/*" "${PREFIX}/share/*")
list(REMOVE_ITEM folders include share share/deeprec share/pkgconfig)
if("kernels" IN_LIST FEATURES)
  list(REMOVE_ITEM folders lib)
  if(NOT EXISTS "${PREFIX}/lib/libdeeprec_kernels.a")
    message(FATAL_ERROR "the port installs no component")
  endif()
endif()
if(folders)
  message(FATAL_ERROR "the port leaves ${folders} behind")
endif()
