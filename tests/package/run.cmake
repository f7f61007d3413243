# cmake -DKIND=installed|subproject|pkgconfig -DSOURCE=<repository> -DBINARY=<folder> ... -P run.cmake
# Uses deeprec as its users do, without the network and without CUDA.

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

if(NOT KIND STREQUAL "subproject")
  run("${CMAKE_COMMAND}" -S "${SOURCE}" -B "${BINARY}/deeprec" ${options} -DDEEPREC_CUDA=OFF
      -DDEEPREC_ONEDNN=OFF -DDEEPREC_BUILD_TESTS=OFF -DDEEPREC_BUILD_BENCHMARKS=OFF
      -DDEEPREC_BUILD_EXAMPLES=OFF)
  run("${CMAKE_COMMAND}" --install "${BINARY}/deeprec" --prefix "${prefix}")
endif()

if(KIND STREQUAL "pkgconfig")
  set(ENV{PKG_CONFIG_PATH} "${prefix}/share/pkgconfig")
  run("${PKG_CONFIG}" --cflags --libs deeprec)
  separate_arguments(flags UNIX_COMMAND "${output}")
  run("${COMPILER}" -std=c++20 "${tests}/package/main.cpp" -o "${BINARY}/app" ${flags})
  run("${BINARY}/app")
else()
  run("${CMAKE_COMMAND}" -S "${tests}/package/${KIND}" -B "${BINARY}/app" ${options}
      -DDEEPREC_CUDA=OFF "-DDEEPREC_SOURCE=${SOURCE}" "-DCMAKE_PREFIX_PATH=${prefix}")
  run("${CMAKE_COMMAND}" --build "${BINARY}/app")
  run("${BINARY}/app/app")
endif()
if(NOT output MATCHES "deeprec [0-9]+")
  message(FATAL_ERROR "the program printed: ${output}")
endif()
