deeprec_not_in("asan tsan" "slow to compile, and no code that row_optimizer_test does not run" identities_test wrappers_test)
deeprec_not_in(tsan "no threads" schedules_test)
