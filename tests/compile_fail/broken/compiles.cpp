// expect: "deeprec::nothing: Fix: "
#if DEEPREC_MUST_FAIL
int nothing_wrong;
#endif
