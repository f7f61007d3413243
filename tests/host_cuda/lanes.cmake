deeprec_not_in(asan "slow to compile, and arithmetic on small graphs without memory of its own" stream_plan_test)
