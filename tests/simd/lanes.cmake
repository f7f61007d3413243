deeprec_not_in(tsan "no threads, and that lane has portable kernels only" codes_test conversions_test vectors_test)
