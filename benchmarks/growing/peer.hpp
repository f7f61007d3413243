// What the peers' units share. Each has types of its own: else the linker would keep one of both builds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory_resource>
#include <type_traits>
#include <utility>

#include "growing/baseline.hpp"

namespace DEEPREC_BASELINE_NS { namespace {

using key_type = std::uint64_t;
using code_type = std::uint32_t;

/// The standard's polymorphic allocator hands itself on to elements, which libcuckoo is not ready for.
template <class T>
struct allocator {
  using value_type = T;
  explicit allocator(std::pmr::memory_resource* from) noexcept : memory(from) {}
  template <class Other>
  allocator(const allocator<Other>& other) noexcept : memory(other.memory) {}
  T* allocate(std::size_t n) { return static_cast<T*>(memory->allocate(n * sizeof(T), alignof(T))); }
  void deallocate(T* at, std::size_t n) { memory->deallocate(at, n * sizeof(T), alignof(T)); }
  template <class Other>
  bool operator==(const allocator<Other>& other) const noexcept {
    return memory == other.memory;
  }
  std::pmr::memory_resource* memory;
};
using memory_type = allocator<std::pair<const key_type, code_type>>;

/// Two multiplications, as in our index; all bits are mixed.
struct hasher {
  using is_avalanching = std::true_type;
  std::size_t operator()(key_type key) const noexcept {
    key_type h = (key ^ (key >> 32)) * 0x9fb21c651e98df25U;
    h = (h ^ (h >> 29)) * 0xd6e8feb86659fd93U;
    return h ^ (h >> 32);
  }
};

/// Of a class with find and insert, made from memory and a number of keys.
template <class Map>
growing_bench::peer_map map_of(const char* version, std::size_t bytes_per_key) {
  return {version,
          bytes_per_key,
          [](std::pmr::memory_resource* memory, std::size_t keys) -> void* { return new Map(memory, keys); },
          [](void* map) { delete static_cast<Map*>(map); },
          [](const void* map, const key_type* keys, std::size_t n, code_type* codes) {
            static_cast<const Map*>(map)->find(keys, n, codes);
          },
          [](void* map, const key_type* keys, std::size_t n, code_type first, code_type* codes) {
            static_cast<Map*>(map)->insert(keys, n, first, codes);
          }};
}

/// Of a map with the interface of the standard's, of which fetch(map, key) prefetches what a key needs.
template <class Map, void (*fetch)(const Map&, key_type)>
class fetching_map {
 public:
  fetching_map(std::pmr::memory_resource* memory, std::size_t keys) : map_(memory_type(memory)) {
    map_.reserve(keys);
  }
  void find(const key_type* keys, std::size_t n, code_type* codes) const {
    each_fetched(keys, n, [&](std::size_t i) {
      const auto at = map_.find(keys[i]);
      codes[i] = at == map_.end() ? 0 : at->second;
    });
  }
  void insert(const key_type* keys, std::size_t n, code_type first, code_type* codes) {
    each_fetched(keys, n, [&](std::size_t i) {
      codes[i] = map_.emplace(keys[i], first + static_cast<code_type>(i)).first->second;
    });
  }

 private:
  template <class Use>
  void each_fetched(const key_type* keys, std::size_t n, Use&& use) const {
    constexpr std::size_t ahead = 16;  // 8 are slower, 32 no faster
    for (std::size_t i = 0; i < std::min(ahead, n); ++i) fetch(map_, keys[i]);
    for (std::size_t i = 0; i < n; ++i) {
      if (i + ahead < n) fetch(map_, keys[i + ahead]);
      use(i);
    }
  }

  Map map_;
};

}}  // namespace DEEPREC_BASELINE_NS
