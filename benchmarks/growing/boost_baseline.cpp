#include <boost/unordered/concurrent_flat_map.hpp>
#include <boost/version.hpp>

#include "growing/peer.hpp"

namespace DEEPREC_BASELINE_NS {
namespace {

class map {
 public:
  map(std::pmr::memory_resource* memory, std::size_t keys)
      : map_(keys, hasher(), std::equal_to<key_type>(), memory_type(memory)) {}
  // A bulk visit meets the keys in their order, and passes over those that are not there.
  void find(const key_type* keys, std::size_t n, code_type* codes) const {
    std::fill(codes, codes + n, code_type{0});
    std::size_t i = 0;
    map_.cvisit(keys, keys + n, [&](const auto& entry) {
      while (keys[i] != entry.first) ++i;
      codes[i++] = entry.second;
    });
  }
  void insert(const key_type* keys, std::size_t n, code_type first, code_type* codes) {
    for (std::size_t i = 0; i < n; ++i) {
      codes[i] = first + static_cast<code_type>(i);
      map_.emplace_or_cvisit(keys[i], codes[i], [&](const auto& entry) { codes[i] = entry.second; });
    }
  }

 private:
  boost::concurrent_flat_map<key_type, code_type, hasher, std::equal_to<key_type>, memory_type> map_;
};

}  // namespace

growing_bench::peer_map boost_map() { return map_of<map>(BOOST_LIB_VERSION, 40); }

}  // namespace DEEPREC_BASELINE_NS
