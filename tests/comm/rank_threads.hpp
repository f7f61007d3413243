// Ranks that are threads, for tests.
#pragma once

#include <deeprec/comm/thread_ranks.hpp>

#include <chrono>
#include <thread>
#include <vector>

namespace deeprec_test {

/// Runs body(comm) on a thread for each rank.
template <class Body>
void on_ranks(int ranks, const deeprec::thread_ranks_options& options, const Body& body) {
  deeprec::thread_ranks<> world(ranks, options);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back([&, r] { body(world.rank(r)); });
  for (std::thread& t : threads) t.join();
}

/// Whether trial(patience) holds, where a limit is to end. On a busy machine other ranks may be late as well:
/// the trial is repeated with more patience.
template <class Trial>
bool in_patience(const Trial& trial) {
  for (std::chrono::milliseconds patience(200); patience < std::chrono::minutes(1); patience *= 6) {
    if (trial(patience)) return true;
  }
  return false;
}

}  // namespace deeprec_test
