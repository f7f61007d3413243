// The files of a run: nothing that is written may be what is read, or what is written beside it.
//
//   --predict F --output F      refused, also through links, before any file is opened for writing
//   --load F --save F           goes: F is read before training, and replaced when the new one is whole
#pragma once

#include "options.hpp"

namespace ctr {

/// Throws a failure where two files are one and must not be, or where an output can't be written.
void check_files(const options& o);

}  // namespace ctr
