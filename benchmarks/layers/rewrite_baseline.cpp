// The rows read, changed and written of the update suite.
#include "update/update_baseline.cpp"
