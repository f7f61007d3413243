# deeprec_train_ctr_check(<test> <check> [<word>...]): runs a check of check.cmake as a test of the calling folder, the words before its
# command.
include_guard(GLOBAL)
set_property(GLOBAL PROPERTY deeprec_train_ctr_folder "${CMAKE_CURRENT_LIST_DIR}")
function(deeprec_train_ctr_check test check)
  get_property(folder GLOBAL PROPERTY deeprec_train_ctr_folder)
  add_test(NAME ${test}
           COMMAND ${ARGN} "${CMAKE_COMMAND}" "-DPROGRAM=$<TARGET_FILE:train_ctr>" "-DCHECK=${check}"
                   "-DFILE_CHECK=$<TARGET_FILE:train_ctr_file_check>"
                   "-DTRAINING_CHECK=$<TARGET_FILE:train_ctr_training_check>"
                   "-DDATA=${DEEPREC_DATA_DIR}" "-DWORK=${CMAKE_CURRENT_BINARY_DIR}/${test}"
                   "-DZLIB=$<TARGET_EXISTS:deeprec::zlib>" "-DZSTD=$<TARGET_EXISTS:deeprec::zstd>" -P
                   "${folder}/check.cmake")
  set_tests_properties(${test} PROPERTIES LABELS example TIMEOUT 300)
  if(check STREQUAL "learns")
    set_tests_properties(${test} PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED: no Criteo sample")
  elseif(check STREQUAL "learns_groceries")
    set_tests_properties(${test} PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED: no Amazon sample")
  endif()
endfunction()
