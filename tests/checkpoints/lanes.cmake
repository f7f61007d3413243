deeprec_not_in("asan tsan" "replaces system calls that the sanitizers replace" system_faults_test)
