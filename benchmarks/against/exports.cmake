# cmake -DNM=... -DOBJECT=... -P exports.cmake   fails unless deeprec_bodies is all that the object exports.
execute_process(COMMAND "${NM}" --dynamic --defined-only "${OBJECT}" OUTPUT_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^ \n]+ [A-Za-z] [^\n]+" symbols "${said}")
if(NOT symbols MATCHES "^[^ ]+ T deeprec_bodies$")
  message(FATAL_ERROR "deeprec_bodies has to be all that is exported:\n${OBJECT}:\n${said}")
endif()
