# cmake -DFRAMEWORK=pytorch|tensorflow -DPACKAGE=<examples/...> -DSITE=<folder> -P run.cmake
# Installs the package into SITE with the framework that is there, and runs its tests. Without the framework, setuptools, pip or
# pytest: one line that begins with "SKIPPED: ".

cmake_minimum_required(VERSION 3.24)
set(module_pytorch torch)
set(module_tensorflow tensorflow)
set(module ${module_${FRAMEWORK}})
set(python "$ENV{DEEPREC_PYTHON}")
if(NOT python)
  set(python python3)
endif()
set(ENV{TF_CPP_MIN_LOG_LEVEL} 2)
execute_process(COMMAND "${python}" -c "import setuptools, pip, pytest, ${module}; print(${module}.__version__)" RESULT_VARIABLE absent
                OUTPUT_VARIABLE version ERROR_VARIABLE reason OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_STRIP_TRAILING_WHITESPACE)
if(NOT absent STREQUAL "0")
  string(REGEX REPLACE ".*\n" "" reason "${reason}")
  message("SKIPPED: the package for ${FRAMEWORK} is NOT tested with ${python}: ${absent} ${reason}")
  return()
endif()
message("${FRAMEWORK} ${version}")
file(REMOVE_RECURSE "${SITE}")
execute_process(COMMAND "${python}" -m pip install --quiet --disable-pip-version-check --no-input --no-build-isolation --no-deps
                        --target "${SITE}" "${PACKAGE}" COMMAND_ERROR_IS_FATAL ANY)
set(ENV{PYTHONPATH} "${SITE}")
execute_process(COMMAND "${python}" -m pytest -q -rs -p no:cacheprovider "${PACKAGE}/tests" COMMAND_ERROR_IS_FATAL ANY)
