// What Monolith and TensorFlow Recommenders Addons have their tables of embeddings in.
#include <libcuckoo/cuckoohash_map.hh>

#include "growing/peer.hpp"

namespace DEEPREC_BASELINE_NS {
namespace {

class map {
 public:
  map(std::pmr::memory_resource* memory, std::size_t keys)
      : map_(std::max(keys, libcuckoo::DEFAULT_SIZE), hasher(), std::equal_to<key_type>(),
             memory_type(memory)) {}
  void find(const key_type* keys, std::size_t n, code_type* codes) const {
    for (std::size_t i = 0; i < n; ++i) {
      code_type code = 0;
      map_.find(keys[i], code);
      codes[i] = code;
    }
  }
  void insert(const key_type* keys, std::size_t n, code_type first, code_type* codes) {
    for (std::size_t i = 0; i < n; ++i) {
      codes[i] = first + static_cast<code_type>(i);
      map_.upsert(keys[i], [&](code_type& code) { codes[i] = code; }, codes[i]);
    }
  }

 private:
  libcuckoo::cuckoohash_map<key_type, code_type, hasher, std::equal_to<key_type>, memory_type> map_;
};

}  // namespace

growing_bench::peer_map libcuckoo_map() { return map_of<map>("", 48); }

}  // namespace DEEPREC_BASELINE_NS
