deeprec_not_in(release "slow to compile; the extended lane runs it" gemm_modes_test)
deeprec_not_in("asan tsan" "slow to compile, and no memory or threads that gemm_test does not have" gemm_modes_test)
deeprec_not_in(tsan "no threads of its own" memory_of_layers_test metrics_test)
