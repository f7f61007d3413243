// The pools of others, each with two threads that share pieces of work with their caller.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace dispatch_bench {

/// Calls work(context, piece) for the pieces 0 and 1, and returns when both have ended.
class pool_of_two {
 public:
  virtual ~pool_of_two() = default;
  virtual void run(void (*work)(void* context, long piece), void* context) = 0;
};
struct named_pool {
  std::string name;
  std::unique_ptr<pool_of_two> pool;
};

}  // namespace dispatch_bench

namespace o2 {
std::vector<dispatch_bench::named_pool> make_pools();
}
namespace native {
std::vector<dispatch_bench::named_pool> make_pools();
}
