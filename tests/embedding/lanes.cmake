set(same_code "slow to compile, and no code that other units of the layer do not run")
deeprec_not_in("asan tsan aarch64" "${same_code}" migration_test quantized_int8_f16_test update_oracles_test update_optimizers_test
               fp8_rows_test device_pool_test device_stages_test device_update_test quantized_int8_test row_widths_test)
deeprec_not_in(release "slow to compile; the extended lane runs them" migration_test quantized_int8_f16_test quantized_int8_test update_oracles_test
               update_optimizers_test fp8_rows_test device_pool_test device_stages_test device_update_test lookup_policies_test feature_group_test
               split_rows_test separate_state_test memory_of_verbs_test stages_test row_widths_test)
deeprec_not_in("asan tsan" "${same_code}" lookup_policies_test feature_group_test split_rows_test separate_state_test backward_test)
deeprec_not_in(tsan "no data that threads share but those of lookup_test, update_test, resolve_test and partition_test"
               stages_test table_file_test quantized_int4_test sparse_segment_test memory_of_verbs_test jagged_batch_test)
deeprec_not_in(aarch64 "slow to compile, and no kernels that other units of the layer do not run" backward_test fused_lookup_test
               gradient_test jagged_batch_test lookup_policies_test partition_test resolve_test quantized_int4_test stages_test separate_state_test
               table_file_test table_test feature_group_test feature_group_update_test)
deeprec_not_in("nvcc asan" "nvcc and the sanitizers take minutes for every format, policy and optimizer; the extended lane runs them on the host"
               device_pooling_test device_training_test)
deeprec_not_in(asan "slow to compile; what outputs own is also tested by regression/memory_test" memory_of_verbs_test)
