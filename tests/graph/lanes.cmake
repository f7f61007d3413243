deeprec_not_in(tsan "no threads" assign_streams_test cut_search_test flat_graph_test fuse_test smart_stage_test step_editor_test step_faults_test step_graph_test subgraph_partition_test)
deeprec_not_in("asan tsan" "slow to compile, and no code that staged_program_test does not run" founding_program_test)
deeprec_not_in(release "slow to compile; the extended lane runs them" fuse_test sharded_ops_test subgraph_partition_test)
deeprec_not_in(asan "slow, and arithmetic on small graphs without memory of its own" assign_streams_test subgraph_partition_test)
