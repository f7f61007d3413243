// The gather of the lookup suite.
#include "lookup/lookup_baseline.cpp"
