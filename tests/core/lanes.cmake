deeprec_not_in(tsan "no threads" fp8_test)
