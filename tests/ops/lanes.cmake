deeprec_not_in("asan tsan" "slow to compile; guard pages stand beside its memory in the release lane" expression_test)
deeprec_not_in(tsan "each thread writes rows of its own, as in row_select_test" cast_test column_sums_test tile_test transpose_test)
