# cmake -DKIND=<kind> -DSOURCE=<repository> -DBINARY=<folder> ... -P run.cmake
# Uses deeprec as its users do, without the network and without CUDA:
#
#   installed, pkgconfig, vcpkg     installed first (by our port where it is vcpkg), then found
#   subproject                      add_subdirectory, and nothing of the parent's changes
#   fetchcontent                    FetchContent on a machine that has no CUDA
#   kernels_vcpkg, ..._subproject, ..._fetchcontent   the compiled component, beside the same program without it
#   no_exceptions, two_units        -fno-exceptions -fno-rtti; units of different -march in one program

cmake_minimum_required(VERSION 3.24)
set(options -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${COMPILER}" -DCMAKE_BUILD_TYPE=Release
            -DFETCHCONTENT_FULLY_DISCONNECTED=ON "-DEXPECT_ONEDNN=${EXPECT_ONEDNN}")

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(NOT code STREQUAL "0")
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nended with ${code}:\n${said}")
  endif()
  set(output "${said}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${BINARY}")
file(MAKE_DIRECTORY "${BINARY}")
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH tests)
set(prefix "${BINARY}/prefix")
set(consumer "${KIND}")

if(KIND MATCHES "^kernels_")
  set(consumer kernels)
  list(APPEND options "-DKIND=${KIND}")
endif()
if(KIND MATCHES "^(installed|pkgconfig)$")
  run("${CMAKE_COMMAND}" -S "${SOURCE}" -B "${BINARY}/deeprec" ${options} -DDEEPREC_CUDA=OFF
      -DDEEPREC_ONEDNN=OFF -DDEEPREC_BUILD_TESTS=OFF -DDEEPREC_BUILD_BENCHMARKS=OFF
      -DDEEPREC_BUILD_EXAMPLES=OFF)
  run("${CMAKE_COMMAND}" --install "${BINARY}/deeprec" --prefix "${prefix}")
elseif(KIND MATCHES "vcpkg$")
  set(features core)
  if(KIND STREQUAL "kernels_vcpkg")
    list(APPEND features kernels)
  elseif(EXPECT_ONEDNN)
    list(APPEND features onednn)
  endif()
  list(JOIN features "," features)
  run("${CMAKE_COMMAND}" "-DSOURCE=${SOURCE}" "-DPREFIX=${prefix}" "-DBUILD=${BINARY}/deeprec"
      "-DGENERATOR=${GENERATOR}" "-DCOMPILER=${COMPILER}" "-DFEATURES=${features}" -P
      "${tests}/package/vcpkg/stand_in.cmake")
  if(KIND STREQUAL "vcpkg")
    set(consumer installed)
  endif()
elseif(KIND MATCHES "fetchcontent$")
  list(APPEND options "-DFETCHCONTENT_SOURCE_DIR_DEEPREC=${SOURCE}"
       -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON)
endif()
if(NOT KIND MATCHES "fetchcontent$")
  list(APPEND options -DDEEPREC_CUDA=OFF)
endif()

if(KIND STREQUAL "pkgconfig")
  set(ENV{PKG_CONFIG_PATH} "${prefix}/share/pkgconfig")
  run("${PKG_CONFIG}" --cflags --libs deeprec)
  separate_arguments(flags UNIX_COMMAND "${output}")
  run("${COMPILER}" -std=c++20 "${tests}/package/main.cpp" -o "${BINARY}/app" ${flags})
  run("${BINARY}/app")
else()
  run("${CMAKE_COMMAND}" -S "${tests}/package/${consumer}" -B "${BINARY}/app" ${options}
      "-DDEEPREC_SOURCE=${SOURCE}" "-DCMAKE_PREFIX_PATH=${prefix}")
  run("${CMAKE_COMMAND}" --build "${BINARY}/app")
  string(REGEX MATCHALL "(plain|headers)[.]dir|Elapsed time:[^\n]*" times "${output}")
  if(times)
    message(STATUS "with the component (plain) and with headers only:\n${times}")
  endif()
  run("${BINARY}/app/app")
endif()
if(NOT output MATCHES "deeprec [0-9]+")
  message(FATAL_ERROR "the program printed: ${output}")
endif()
