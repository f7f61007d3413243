# cmake -DCASE=<file.cpp> -DCOMPILER=<g++ or clang++> -DFLAGS=<flag;flag> [-DALONE=ON] -P run.cmake
# What is wrong use must not compile, and the first error must say so and name the fix.
#
#   // expect: "<regular expression>"     matched by the first error of the compiler
#   #if DEEPREC_MUST_FAIL                 around what is wrong; the rest of the file must compile
#
# ALONE: that the rest compiles is left to the target compile_fail_rest, which has the rests of all cases.

cmake_minimum_required(VERSION 3.24)
set(ENV{LC_ALL} C)
file(READ "${CASE}" text)
if(NOT text MATCHES "^// expect: \"([^\n]*)\"\n" OR NOT text MATCHES "DEEPREC_MUST_FAIL")
  message(FATAL_ERROR "${CASE} does not begin with // expect: \"...\" or has no DEEPREC_MUST_FAIL")
endif()
string(REGEX MATCH "^// expect: \"([^\n]*)\"\n" first_line "${text}")
set(expected "${CMAKE_MATCH_1}")

function(compile must_fail)
  execute_process(
    COMMAND "${COMPILER}" -std=c++20 -fsyntax-only ${FLAGS} -DDEEPREC_MUST_FAIL=${must_fail} "${CASE}"
    RESULT_VARIABLE code
    OUTPUT_VARIABLE said
    ERROR_VARIABLE said)
  set(code "${code}" PARENT_SCOPE)
  set(said "${said}" PARENT_SCOPE)
endfunction()

if(NOT ALONE)
  compile(0)
  if(NOT code STREQUAL "0")
    message(FATAL_ERROR "without DEEPREC_MUST_FAIL this should compile:\n${said}")
  endif()
endif()
compile(1)
if(code STREQUAL "0")
  message(FATAL_ERROR "with DEEPREC_MUST_FAIL this should not compile")
endif()
string(REGEX MATCH "[^\n]* error: [^\n]*" error "${said}")
if(NOT error MATCHES "${expected}")
  message(FATAL_ERROR "the first error is\n${error}\nand not\n${expected}\nThe compiler said:\n${said}")
endif()
# A deleted function has no words of its own; every other message is ours.
if(NOT expected MATCHES "deleted" AND NOT error MATCHES "deeprec::.*Fix: ")
  message(FATAL_ERROR "this message has no \"deeprec::\" or no \"Fix: \" in it:\n${error}")
endif()
