// The gather of the lookup suite, and its plain loop.
#include "lookup/lookup_baseline.cpp"
