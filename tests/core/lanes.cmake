deeprec_not_in(tsan "no threads" array_view_test coo_view_test dtypes_test fp8_test hash_test jagged_view_test matrix_view_test random_test rounding_test)
