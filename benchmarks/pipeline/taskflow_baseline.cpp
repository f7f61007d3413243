#include "pipeline/baseline.hpp"

#include <taskflow/algorithm/pipeline.hpp>
#include <taskflow/taskflow.hpp>

#include <chrono>
#include <vector>

namespace DEEPREC_BASELINE_NS {
namespace {

using namespace pipeline_bench;

// Lines are Taskflow's word for items under way; their buffers are the user's.
template <bool Three>
double run_lines(const spec& s, std::uint64_t& sum) {
  static tf::Executor executor(2);
  std::vector<std::uint64_t> buffer(s.tokens);
  std::uint64_t k = 0;
  sum = 0;
  const auto read = [&](tf::Pipeflow& flow) {
    if (k == s.items) return flow.stop();
    buffer[flow.line()] = chain(k++, s.first_steps);
  };
  const auto middle = [&](tf::Pipeflow& flow) { buffer[flow.line()] ^= 1; };
  const auto last = [&](tf::Pipeflow& flow) { sum = fold(sum, chain(buffer[flow.line()], s.second_steps)); };
  const auto seconds = [&](auto& pipeline) {
    tf::Taskflow flow;
    flow.composed_of(pipeline);
    const auto begin = std::chrono::steady_clock::now();
    executor.run(flow).wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  if constexpr (Three) {
    tf::Pipeline pipeline(s.tokens, tf::Pipe{tf::PipeType::SERIAL, read},
                          tf::Pipe{tf::PipeType::SERIAL, middle}, tf::Pipe{tf::PipeType::SERIAL, last});
    return seconds(pipeline);
  } else {
    tf::Pipeline pipeline(s.tokens, tf::Pipe{tf::PipeType::SERIAL, read},
                          tf::Pipe{tf::PipeType::SERIAL, last});
    return seconds(pipeline);
  }
}

}  // namespace

void add_taskflow(std::vector<contender>& to) {
  to.push_back({"Taskflow", run_lines<false>, run_lines<true>});
}

}  // namespace DEEPREC_BASELINE_NS
