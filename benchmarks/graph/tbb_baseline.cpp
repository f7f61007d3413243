#include <oneapi/tbb/flow_graph.h>
#include <oneapi/tbb/task_arena.h>

#include <memory>

#include "graph/baseline.hpp"

namespace DEEPREC_BASELINE_NS {
namespace {

using namespace graph_bench;
namespace flow = oneapi::tbb::flow;

class flow_graph final : public runner {
 public:
  flow_graph(const graph& of, std::uint64_t* values, int threads) : arena_(threads) {
    arena_.execute([&] {
      graph_ = std::make_unique<flow::graph>();
      std::vector<bool> has_before(of.ops.size());
      for (std::size_t v = 0; v < of.ops.size(); ++v) {
        nodes_.push_back(std::make_unique<node>(
            *graph_, [values, self = static_cast<std::uint32_t>(v), op = of.ops[v]](flow::continue_msg) {
              run_op(op.kind, values, self, op);
            }));
      }
      for (const auto& [u, v] : of.edges) {
        flow::make_edge(*nodes_[u], *nodes_[v]);
        has_before[v] = true;
      }
      for (std::size_t v = 0; v < of.ops.size(); ++v) {
        if (!has_before[v]) first_.push_back(nodes_[v].get());
      }
    });
  }
  ~flow_graph() override {
    arena_.execute([&] {
      nodes_.clear();
      graph_.reset();
    });
  }
  void run() override {
    arena_.execute([&] {
      for (node* const n : first_) n->try_put(flow::continue_msg());
      graph_->wait_for_all();
    });
  }

 private:
  using node = flow::continue_node<flow::continue_msg>;
  oneapi::tbb::task_arena arena_;
  std::unique_ptr<flow::graph> graph_;
  std::vector<std::unique_ptr<node>> nodes_;
  std::vector<node*> first_;
};

}  // namespace

void add_tbb(std::vector<peer>& to) {
  to.push_back({"oneTBB", [](const graph& of, std::uint64_t* values, int threads) -> runner* {
                  return new flow_graph(of, values, threads);
                }});
}

}  // namespace DEEPREC_BASELINE_NS
