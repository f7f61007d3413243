#include <parallel_hashmap/phmap.h>

#include <string>

#include "growing/peer.hpp"

namespace DEEPREC_BASELINE_NS {
namespace {

using map = phmap::flat_hash_map<key_type, code_type, hasher, std::equal_to<key_type>, memory_type>;
// prefetch(key) does nothing with an allocator that is not the standard's.
void fetch(const map& of, key_type key) { of.prefetch_hash(of.hash(key)); }

}  // namespace

growing_bench::peer_map phmap_map() {
  static const std::string version = std::to_string(PHMAP_VERSION_MAJOR) + "." +
                                     std::to_string(PHMAP_VERSION_MINOR) + "." +
                                     std::to_string(PHMAP_VERSION_PATCH);
  return map_of<fetching_map<map, fetch>>(version.c_str(), 40);
}

}  // namespace DEEPREC_BASELINE_NS
