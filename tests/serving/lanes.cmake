deeprec_not_in(tsan "one thread at a time; versioned_threads_test has the others" versioned_test)
