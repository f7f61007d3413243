// The peers that this build has: each in two builds.
#pragma once

#include <vector>

#include "graph/baseline.hpp"

namespace graph_bench {

inline const std::vector<peer>& peers() {
  static const std::vector<peer> all = [] {
    std::vector<peer> found;
#if defined(HAVE_TBB)
    o2::add_tbb(found);
    native::add_tbb(found);
#endif
#if defined(HAVE_TASKFLOW)
    o2::add_taskflow(found);
    native::add_taskflow(found);
#endif
    return found;
  }();
  return all;
}

}  // namespace graph_bench
