deeprec_not_in(tsan "no threads" stream_pool_resource_test)
