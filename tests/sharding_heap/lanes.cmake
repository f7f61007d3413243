deeprec_not_in("asan tsan" "the sanitizers have an operator new of their own" loop_heap_test)
