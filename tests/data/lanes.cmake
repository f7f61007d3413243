deeprec_not_in(tsan "no threads" criteo_format_test farmhash_test formats_test)
