deeprec_not_in(release "slow to compile; the extended lane runs them" growing_batches_test growing_dense_test growing_formats_test growing_groups_test
               growing_keys_test growing_schedule_test growing_updates_test)
deeprec_not_in("asan tsan" "slow to compile, and no code that other units of the layer do not run" growing_dense_test growing_formats_test
               growing_updates_test growing_batches_test growing_schedule_test)
deeprec_not_in(tsan "no data that threads share but those of growing_threads_test, growing_pins_test and key_map_test" admission_test
               eviction_test growing_faults_test growing_groups_test growing_keys_test growing_model_test key_index_test key_map_model_test)
