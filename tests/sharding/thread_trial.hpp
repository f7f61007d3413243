// A trial on ranks that are threads.
#pragma once

#include <deeprec/comm/thread_ranks.hpp>

#include <atomic>

#include "comm/rank_threads.hpp"
#include "sharding/sharded_trial.hpp"

namespace deeprec_test {

/// Whether all ranks have the outputs and rows of one process, to the bit.
template <class Trial>
bool same(Trial trial, bool on_threads = false) {
  trial.expect();
  std::atomic<bool> fine{true};
  on_ranks(trial.ranks, {.sent = sent_blocks::poisoned}, [&](thread_rank<> comm) {
    if (!trial.same_at(comm, on_threads)) fine = false;
  });
  return fine;
}

}  // namespace deeprec_test
