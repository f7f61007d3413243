// The instruction sets of this machine, and contexts that choose one.
#pragma once

#include <vector>

#include <deeprec/core/context.hpp>
#include <deeprec/core/isa.hpp>

namespace deeprec_test {

/// Every instruction set that kernels are compiled for and this processor has.
inline std::vector<deeprec::isa> runnable_isas() {
  std::vector<deeprec::isa> found;
  for (const deeprec::isa candidate : deeprec::every_isa) {
    if (candidate <= deeprec::best_isa()) found.push_back(candidate);
  }
  return found;
}

template <class Executor>
deeprec::context<Executor> on(Executor& executor, deeprec::isa which) {
  deeprec::context<Executor> ctx(executor);
  ctx.instruction_set = which;
  return ctx;
}

}  // namespace deeprec_test
