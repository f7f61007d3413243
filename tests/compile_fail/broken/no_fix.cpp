// expect: "deeprec::nothing: wrong"
#if DEEPREC_MUST_FAIL
static_assert(false, "deeprec::nothing: wrong");
#endif
