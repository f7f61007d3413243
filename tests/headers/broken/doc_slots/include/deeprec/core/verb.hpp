#pragma once

/// Adds.
///
/// @shape     (N)
/// @cost      O(N)
/// @dtype     f32
void verb();
