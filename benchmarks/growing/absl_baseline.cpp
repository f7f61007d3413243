#include <absl/container/flat_hash_map.h>

#include "growing/peer.hpp"

namespace DEEPREC_BASELINE_NS {
namespace {

using map = absl::flat_hash_map<key_type, code_type, hasher, std::equal_to<key_type>, memory_type>;
void fetch(const map& of, key_type key) { of.prefetch(key); }

}  // namespace

growing_bench::peer_map absl_map() { return map_of<fetching_map<map, fetch>>("", 40); }

}  // namespace DEEPREC_BASELINE_NS
