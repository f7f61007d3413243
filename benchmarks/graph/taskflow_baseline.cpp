#include <taskflow/taskflow.hpp>

#include "graph/baseline.hpp"

namespace DEEPREC_BASELINE_NS {
namespace {

using namespace graph_bench;

class task_graph final : public runner {
 public:
  task_graph(const graph& of, std::uint64_t* values, int threads)
      : executor_(static_cast<std::size_t>(threads)) {
    std::vector<tf::Task> tasks;
    for (std::size_t v = 0; v < of.ops.size(); ++v) {
      tasks.push_back(flow_.emplace([values, self = static_cast<std::uint32_t>(v), op = of.ops[v]] {
        run_op(op.kind, values, self, op);
      }));
    }
    for (const auto& [u, v] : of.edges) tasks[u].precede(tasks[v]);
  }
  void run() override { executor_.run(flow_).wait(); }

 private:
  tf::Executor executor_;
  tf::Taskflow flow_;
};

}  // namespace

void add_taskflow(std::vector<peer>& to) {
  to.push_back({"Taskflow", [](const graph& of, std::uint64_t* values, int threads) -> runner* {
                  return new task_graph(of, values, threads);
                }});
}

}  // namespace DEEPREC_BASELINE_NS
