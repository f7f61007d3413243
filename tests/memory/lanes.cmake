deeprec_not_in("asan tsan" "replaces system calls that the sanitizers replace" mapped_faults_test)
