# Everything deeprec builds on: found on the machine first, fetched at a pinned commit second.
# A parent project that already has one of these targets keeps its own.

include(FetchContent)

# deeprec_dependency(<package> <target> <oldest version> <git repository> <commit>)
# A function, so that nothing which a dependency sets reaches our scope or the parent's. The version
# is compared here: several of these packages refuse to be asked for an older major version.
function(deeprec_dependency package target oldest repository commit)
  if(TARGET ${target})
    return()
  endif()
  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW) # the plain variables below override options
  set(BUILD_TESTING OFF)
  set(EIGEN_BUILD_DOC OFF)
  set(EIGEN_BUILD_TESTING OFF)
  set(DOCTEST_WITH_TESTS OFF)
  set(BENCHMARK_ENABLE_TESTING OFF)
  set(BENCHMARK_ENABLE_INSTALL OFF)
  set(CLI11_BUILD_TESTS OFF)
  set(CLI11_BUILD_EXAMPLES OFF)
  set(options)
  if(CMAKE_VERSION VERSION_GREATER_EQUAL 3.25)
    list(APPEND options SYSTEM)
  endif()
  if(CMAKE_VERSION VERSION_GREATER_EQUAL 3.28)
    list(APPEND options EXCLUDE_FROM_ALL)
  endif()
  FetchContent_Declare(
    ${package}
    GIT_REPOSITORY ${repository}
    GIT_TAG ${commit}
    ${options}
    FIND_PACKAGE_ARGS QUIET)
  FetchContent_MakeAvailable(${package})
  if(${package}_FOUND AND ${package}_VERSION VERSION_LESS oldest)
    message(
      FATAL_ERROR
        "deeprec: ${package} ${${package}_VERSION} is older than ${oldest}. "
        "Fix: install a newer one, or fetch it with -DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON")
  endif()
endfunction()

# --- for users -----------------------------------------------------------------------------------

if(NOT TARGET Threads::Threads)
  find_package(Threads REQUIRED)
endif()
deeprec_dependency(Eigen3 Eigen3::Eigen 3.4 https://gitlab.com/libeigen/eigen.git
                   3147391d946bb4b6c68edd901f2add6ac1f31f8c) # 3.4.0
deeprec_dependency(xsimd xsimd 8.1 https://github.com/xtensor-stack/xsimd.git
                   01bd143c82a215973a643d709121617b7fc57dae) # 14.0.0
include("${CMAKE_CURRENT_LIST_DIR}/deeprec_xsimd.cmake")

# --- for our own tests, benchmarks and examples --------------------------------------------------

if(DEEPREC_BUILD_TESTS)
  deeprec_dependency(doctest doctest::doctest 2.4.9 https://github.com/doctest/doctest.git
                     ae7a13539fb71f270b87eb2e874fbac80bc8dda2) # 2.4.11
endif()
if(DEEPREC_BUILD_BENCHMARKS)
  deeprec_dependency(benchmark benchmark::benchmark 1.7 https://github.com/google/benchmark.git
                     eddb0241389718a23a42db6af5f0164b6e0139af) # 1.9.4
endif()
if(DEEPREC_BUILD_BENCHMARKS OR DEEPREC_BUILD_EXAMPLES)
  deeprec_dependency(
    nlohmann_json nlohmann_json::nlohmann_json 3.10 https://github.com/nlohmann/json.git
    9cca280a4d0ccf0c08f47a99aa71d1b0e52f8d03) # 3.11.3
  deeprec_dependency(CLI11 CLI11::CLI11 2.1 https://github.com/CLIUtils/CLI11.git
                     6c7b07a878ad834957b98d0f9ce1dbe0cb204fc9) # 2.4.2
endif()
