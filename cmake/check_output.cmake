# cmake -DPROGRAM=... [-DARGUMENT=...] -DEXPECTED=... -P check_output.cmake: PROGRAM prints exactly the file EXPECTED.

cmake_minimum_required(VERSION 3.24)
execute_process(COMMAND "${PROGRAM}" ${ARGUMENT} OUTPUT_VARIABLE printed RESULT_VARIABLE code)
file(READ "${EXPECTED}" expected)
if(NOT code STREQUAL "0")
  message(FATAL_ERROR "${PROGRAM} ended with ${code} and printed:\n${printed}")
endif()
if(NOT printed STREQUAL expected)
  message(FATAL_ERROR "expected (${EXPECTED}):\n${expected}\nprinted:\n${printed}")
endif()
