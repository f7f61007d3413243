# Programs that mpirun starts: tests and benchmarks.

# deeprec_mpirun(<out>): mpirun and its flags, to be followed by ${MPIEXEC_NUMPROC_FLAG}, a number and a program.
# <out>_MOST: how many ranks do well on two processors. <out>_RECOVERS: whether --enable-recovery keeps a job going that
# loses a rank.
function(deeprec_mpirun out)
  execute_process(COMMAND "${MPIEXEC_EXECUTABLE}" --version OUTPUT_VARIABLE version ERROR_VARIABLE version)
  set(most 4)
  set(recovers OFF)
  set(flags)
  # Without the kernel's copies between processes, which containers forbid; more ranks than processors yield.
  if(version MATCHES "(Open MPI|OpenRTE|Open RTE|PRRTE)[^0-9]*([0-9]+)")
    set(flags --oversubscribe --allow-run-as-root)
    set(recovers ON)
    if(CMAKE_MATCH_2 LESS 5)
      list(APPEND flags --mca btl_vader_single_copy_mechanism none)
    else()
      list(APPEND flags --mca smsc ^cma)
    endif()
  else() # MPICH polls without yielding
    set(most 2)
  endif()
  set(${out} "${MPIEXEC_EXECUTABLE}" ${flags} PARENT_SCOPE)
  set(${out}_MOST ${most} PARENT_SCOPE)
  set(${out}_RECOVERS ${recovers} PARENT_SCOPE)
endfunction()

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
  deeprec_mpirun(mpirun)
  foreach(size IN ITEMS 2 4)
    if(size GREATER mpirun_MOST)
      continue()
    endif()
    # A launcher may ignore the first signal.
    add_test(NAME ${test}_${size} COMMAND timeout -k 10 300 ${mpirun} ${MPIEXEC_NUMPROC_FLAG} ${size} $<TARGET_FILE:${test}>)
    set_tests_properties(${test}_${size} PROPERTIES LABELS unit TIMEOUT 400 PROCESSORS 2)
  endforeach()
endfunction()
