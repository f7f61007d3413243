// expect: "deeprec::nothing: Fix: "
#if DEEPREC_MUST_FAIL
static_assert(false, "deeprec::other: Fix: nothing");
#endif
