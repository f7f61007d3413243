deeprec_not_in("asan tsan" "the sanitizers have an operator new of their own" heap_refusals_test)
