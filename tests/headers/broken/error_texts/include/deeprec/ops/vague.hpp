#pragma once

inline status good() { return {errc::shape_mismatch, "good: out.extent(1) must be the row width D"}; }
inline status vague() { return {errc::invalid_value, "out has another width"}; }
