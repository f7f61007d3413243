#include "unique/baseline.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory_resource>
#include <unordered_map>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>

namespace DEEPREC_BASELINE_NS {

long unique_by_sort(const std::int64_t* in, long n, std::int64_t* ids, std::int64_t* inverse,
                    std::int64_t* counts) {
  static thread_local std::vector<std::pair<std::int64_t, std::int64_t>> order;
  order.resize(static_cast<std::size_t>(n));
  for (long k = 0; k < n; ++k) order[static_cast<std::size_t>(k)] = {in[k], k};
  std::sort(order.begin(), order.end());
  long size = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || order[i].first != order[i - 1].first) {
      ids[size] = order[i].first;
      counts[size++] = 0;
    }
    inverse[order[i].second] = size - 1;
    ++counts[size - 1];
  }
  return size;
}

namespace {

using entry = std::pair<const std::int64_t, std::int64_t>;
using memory = std::pmr::polymorphic_allocator<entry>;

/// What clear() frees, the next call gets again: nothing comes from the heap after the first one.
std::pmr::memory_resource* kept() {
  static thread_local std::pmr::unsynchronized_pool_resource pool({0, std::size_t{1} << 22});
  return &pool;
}

template <class Map>
long by_map(Map& map, const std::int64_t* in, long n, std::int64_t* ids, std::int64_t* inverse,
            std::int64_t* counts) {
  map.clear();
  map.reserve(static_cast<std::size_t>(n));
  long size = 0;
  for (long k = 0; k < n; ++k) {
    const auto [at, is_new] = map.try_emplace(in[k], size);
    if (is_new) {
      ids[size] = in[k];
      counts[size++] = 0;
    }
    inverse[k] = at->second;
    ++counts[at->second];
  }
  return size;
}

}  // namespace

long unique_by_std_map(const std::int64_t* in, long n, std::int64_t* ids, std::int64_t* inverse,
                       std::int64_t* counts) {
  static thread_local std::unordered_map<std::int64_t, std::int64_t, std::hash<std::int64_t>,
                                         std::equal_to<std::int64_t>, memory>
      map{memory(kept())};
  return by_map(map, in, n, ids, inverse, counts);
}

long unique_by_flat_map(const std::int64_t* in, long n, std::int64_t* ids, std::int64_t* inverse,
                        std::int64_t* counts) {
  using map_type = absl::flat_hash_map<std::int64_t, std::int64_t,
                                       absl::container_internal::hash_default_hash<std::int64_t>,
                                       absl::container_internal::hash_default_eq<std::int64_t>, memory>;
  static thread_local map_type map{map_type::allocator_type(kept())};
  return by_map(map, in, n, ids, inverse, counts);
}

}  // namespace DEEPREC_BASELINE_NS
