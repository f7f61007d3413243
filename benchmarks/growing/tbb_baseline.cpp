#include <oneapi/tbb/concurrent_hash_map.h>

#include "growing/peer.hpp"

namespace DEEPREC_BASELINE_NS {
namespace {

class map {
 public:
  map(std::pmr::memory_resource* memory, std::size_t keys)
      : nodes_({.max_blocks_per_chunk = std::size_t{1} << 17, .largest_required_pool_block = 64}, memory),
        map_(std::max<std::size_t>(keys, 1), memory_type(&nodes_)) {}
  void find(const key_type* keys, std::size_t n, code_type* codes) const {
    for (std::size_t i = 0; i < n; ++i) {
      map_type::const_accessor at;
      codes[i] = map_.find(at, keys[i]) ? at->second : 0;
    }
  }
  void insert(const key_type* keys, std::size_t n, code_type first, code_type* codes) {
    for (std::size_t i = 0; i < n; ++i) {
      map_type::const_accessor at;
      map_.insert(at, {keys[i], first + static_cast<code_type>(i)});
      codes[i] = at->second;
    }
  }

 private:
  struct compare {
    static std::size_t hash(key_type key) { return hasher()(key); }
    static bool equal(key_type a, key_type b) { return a == b; }
  };
  using map_type = oneapi::tbb::concurrent_hash_map<key_type, code_type, compare, memory_type>;

  std::pmr::unsynchronized_pool_resource nodes_;  // on huge pages too
  map_type map_;
};

}  // namespace

growing_bench::peer_map tbb_map() { return map_of<map>("", 96); }

}  // namespace DEEPREC_BASELINE_NS
