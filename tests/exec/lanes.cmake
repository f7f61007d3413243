deeprec_not_in("asan tsan" "slow to compile, and arithmetic on small graphs without memory of its own" stream_plan_test)
deeprec_not_in(tsan "one thread plays all streams" device_staging_test)
