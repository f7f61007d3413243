#include "pipeline/baseline.hpp"

#include <oneapi/tbb/parallel_pipeline.h>
#include <oneapi/tbb/task_arena.h>

#include <chrono>

namespace DEEPREC_BASELINE_NS {
namespace {

using namespace pipeline_bench;
using oneapi::tbb::filter_mode;
using oneapi::tbb::flow_control;
using oneapi::tbb::make_filter;

oneapi::tbb::task_arena& two_threads() {
  static oneapi::tbb::task_arena arena(2);
  return arena;
}

template <class Run>
double seconds_of(Run run) {
  const auto begin = std::chrono::steady_clock::now();
  two_threads().execute(run);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

auto source_of(const spec& s, std::uint64_t& k) {
  return make_filter<void, std::uint64_t>(filter_mode::serial_in_order,
                                          [&](flow_control& flow) -> std::uint64_t {
                                            if (k == s.items) {
                                              flow.stop();
                                              return 0;
                                            }
                                            return chain(k++, s.first_steps);
                                          });
}
auto sink_of(const spec& s, std::uint64_t& sum) {
  return make_filter<std::uint64_t, void>(filter_mode::serial_in_order, [&](std::uint64_t item) {
    sum = fold(sum, chain(item, s.second_steps));
  });
}

double two(const spec& s, std::uint64_t& sum) {
  std::uint64_t k = 0;
  sum = 0;
  return seconds_of([&] { oneapi::tbb::parallel_pipeline(s.tokens, source_of(s, k) & sink_of(s, sum)); });
}
double three(const spec& s, std::uint64_t& sum) {
  std::uint64_t k = 0;
  sum = 0;
  const auto middle = make_filter<std::uint64_t, std::uint64_t>(filter_mode::serial_in_order,
                                                                [](std::uint64_t item) { return item ^ 1; });
  return seconds_of(
      [&] { oneapi::tbb::parallel_pipeline(s.tokens, source_of(s, k) & middle & sink_of(s, sum)); });
}

}  // namespace

void add_tbb(std::vector<contender>& to) { to.push_back({"oneTBB", two, three}); }

}  // namespace DEEPREC_BASELINE_NS
