# deeprec::kernels: a static library of the kernels that most programs use. Units that link it declare them where their number
# (DEEPREC_KERNELS_NUMBER in core/config.hpp) is the library's, and instantiate their own where it isn't.

# Sets <out> to the number of a unit that is compiled with the flags of a configuration and of this folder.
function(deeprec_kernels_number out config)
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
  set(CMAKE_TRY_COMPILE_CONFIGURATION "${config}")
  string(TOUPPER "${config}" upper)
  get_directory_property(options COMPILE_OPTIONS)
  get_directory_property(definitions COMPILE_DEFINITIONS)
  string(SHA1 key "${CMAKE_CXX_COMPILER};${CMAKE_CXX_FLAGS};${CMAKE_CXX_FLAGS_${upper}};${options};${definitions};${config}")
  file(SHA1 "${PROJECT_SOURCE_DIR}/include/deeprec/core/config.hpp" header)
  set(known "DEEPREC_KERNELS_NUMBER_${upper}")
  if(NOT "${${known}}" MATCHES "^${key}/${header}=")
    if(NOT TARGET deeprec_kernels_flags)
      add_library(deeprec_kernels_flags INTERFACE IMPORTED)
      set_target_properties(deeprec_kernels_flags PROPERTIES INTERFACE_COMPILE_OPTIONS "${options};-fno-lto"
                                                             INTERFACE_COMPILE_DEFINITIONS "${definitions}")
    endif()
    set(object "${PROJECT_BINARY_DIR}/deeprec_kernels_number")
    try_compile(
      compiled "${PROJECT_BINARY_DIR}/CMakeFiles/deeprec_kernels_number" SOURCES "${PROJECT_SOURCE_DIR}/kernels/number.cpp"
      CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${PROJECT_SOURCE_DIR}/include" -DCMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF
      LINK_LIBRARIES deeprec_kernels_flags
      OUTPUT_VARIABLE log
      COPY_FILE "${object}"
      CXX_STANDARD 20
      CXX_STANDARD_REQUIRED ON)
    if(NOT compiled)
      message(FATAL_ERROR "deeprec: kernels/number.cpp must compile:\n${log}")
    endif()
    file(STRINGS "${object}" number REGEX "deeprec=[0-9]+[.]")
    file(REMOVE "${object}")
    if(NOT number MATCHES "deeprec=0*([0-9]+)[.]")
      message(FATAL_ERROR "deeprec: the object of kernels/number.cpp must hold a number (\"${number}\")")
    endif()
    set(${known} "${key}/${header}=${CMAKE_MATCH_1}" CACHE INTERNAL "the units that deeprec::kernels is for")
  endif()
  string(REGEX REPLACE ".*=" "" number "${${known}}")
  set(${out} "${number}" PARENT_SCOPE)
endfunction()

function(deeprec_add_kernels)
  get_property(multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
  if(multi_config)
    set(number "")
    foreach(config IN LISTS CMAKE_CONFIGURATION_TYPES)
      deeprec_kernels_number(of_config "${config}")
      string(APPEND number "$<$<CONFIG:${config}>:${of_config}>")
    endforeach()
  else()
    deeprec_kernels_number(number "${CMAKE_BUILD_TYPE}")
  endif()
  set(unless_installed EXCLUDE_FROM_ALL)
  if(DEEPREC_KERNELS AND DEEPREC_INSTALL)
    set(unless_installed)
  endif()
  set(folder "${PROJECT_SOURCE_DIR}/kernels")
  add_library(deeprec_kernels STATIC ${unless_installed} "${folder}/lookups_f32.cpp" "${folder}/lookups_f16.cpp"
                                     "${folder}/lookups_codes.cpp" "${folder}/lookups_f16_out.cpp")
  add_library(deeprec::kernels ALIAS deeprec_kernels)
  set_target_properties(deeprec_kernels PROPERTIES EXPORT_NAME kernels POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(deeprec_kernels PUBLIC deeprec)
  target_compile_definitions(deeprec_kernels PRIVATE "DEEPREC_KERNELS_CONFIGURED=${number}"
                                             INTERFACE "DEEPREC_KERNELS=${number}")
endfunction()

deeprec_add_kernels()
