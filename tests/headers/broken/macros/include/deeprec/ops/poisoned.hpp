#pragma once

#include <sys/sysmacros.h>

#include <limits>

inline int largest() { return std::numeric_limits<int>::max(); }
inline int least(int small) { return (std::numeric_limits<int>::min)() + small; }  // max(small)
inline const char* text() { return "min(a, b) of small"; }
