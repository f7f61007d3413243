deeprec_not_in("asan tsan" "slow to compile, and no code that row_optimizer_test does not run" identities_test wrappers_test)
