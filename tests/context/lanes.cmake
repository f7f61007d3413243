deeprec_not_in("asan tsan" "the sanitizers replace operator new" allocations_test)
