# Tests that mpirun starts.

# deeprec_mpi_test(<test> <source>...): run by mpirun on 2 ranks and on 4.
function(deeprec_mpi_test test)
  if(NOT TARGET deeprec::mpi OR NOT MPIEXEC_EXECUTABLE)
    add_test(NAME ${test} COMMAND "${CMAKE_COMMAND}" -E echo "SKIPPED: no MPI was found (Debian: libopenmpi-dev openmpi-bin)")
    set_tests_properties(${test} PROPERTIES LABELS unit SKIP_REGULAR_EXPRESSION "^SKIPPED")
    return()
  endif()
  add_executable(${test} ${ARGN} $<TARGET_OBJECTS:deeprec_test_main>)
  target_link_libraries(${test} PRIVATE deeprec_dev deeprec::mpi doctest::doctest)
  target_include_directories(${test} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  add_dependencies(release_tests ${test})
  execute_process(COMMAND "${MPIEXEC_EXECUTABLE}" --version OUTPUT_VARIABLE version ERROR_VARIABLE version)
  set(sizes 2 4)
  # Without the kernel's copies between processes, which containers forbid; more ranks than processors yield.
  if(version MATCHES "(Open MPI|OpenRTE|Open RTE|PRRTE)[^0-9]*([0-9]+)")
    set(flags --oversubscribe --allow-run-as-root)
    if(CMAKE_MATCH_2 LESS 5)
      list(APPEND flags --mca btl_vader_single_copy_mechanism none)
    else()
      list(APPEND flags --mca smsc ^cma)
    endif()
  else() # MPICH polls without yielding
    set(flags)
    set(sizes 2)
  endif()
  foreach(size IN LISTS sizes)
    # A launcher may ignore the first signal.
    add_test(NAME ${test}_${size} COMMAND timeout -k 10 300 "${MPIEXEC_EXECUTABLE}" ${flags} ${MPIEXEC_NUMPROC_FLAG} ${size}
                                          $<TARGET_FILE:${test}>)
    set_tests_properties(${test}_${size} PROPERTIES LABELS unit TIMEOUT 400 PROCESSORS 2)
  endforeach()
endfunction()
