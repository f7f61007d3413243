// How a suite writes its measured bodies: a class for each, and a table of them at the end of the file.
//
//   struct warm {
//     static constexpr double items = 2048;
//     explicit warm(const host& h);   // h.memory<float>("table", n, fill); throws absent or a std::exception
//     void run();                     // the measured work
//     std::uint64_t checksum();       // runs, and sums up the answer
//   };
//   DEEPREC_BODIES(body<warm>("suite/warm", "ids"))
//
// Inputs come from draw(), which no commit of the library changes.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iterator>
#include <stdexcept>
#include <string>

#include "support/bodies.h"

namespace deeprec_bodies_of {

/// Thrown by a state's constructor: this machine can't run the body.
struct absent : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// For a status or a bool.
template <class Status>
inline void must(const Status& done) {
  if (!done) [[unlikely]]
    throw std::runtime_error("a call of the library failed");
}

/// Number i of sequence `seed`, well mixed.
inline std::uint64_t draw(std::uint64_t seed, std::uint64_t i) noexcept {
  std::uint64_t x = (i + 1) * 0x9e3779b97f4a7c15U + seed * 0xd1342543de82ef95U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}
/// The same in [0, n).
inline std::int64_t draw_below(std::uint64_t seed, std::uint64_t i, std::int64_t n) noexcept {
  __extension__ using wide = unsigned __int128;
  return static_cast<std::int64_t>((static_cast<wide>(draw(seed, i)) * static_cast<std::uint64_t>(n)) >> 64);
}
/// The same in [-1, 1).
inline float draw_float(std::uint64_t seed, std::uint64_t i) noexcept {
  return static_cast<float>(static_cast<std::int64_t>(draw(seed, i) >> 40) - (1 << 23)) * 0x1p-23F;
}
/// An id in [0, n), the small ones far more often: the product of three draws.
inline std::int64_t draw_skewed(std::uint64_t seed, std::uint64_t i, std::int64_t n) noexcept {
  return draw_below(seed, 3 * i, draw_below(seed, 3 * i + 1, draw_below(seed, 3 * i + 2, n) + 1) + 1);
}

class host {
 public:
  host(const deeprec_bodies_host* driver, std::uint64_t seed) : driver_(driver), seed_(seed) {}

  /// `count` elements that both commits share; fill(elements, count) is called while they are new.
  template <class T, class Fill>
  T* memory(const std::string& name, std::int64_t count, Fill&& fill) const {
    int fresh = 0;
    const auto bytes = static_cast<std::uint64_t>(count) * sizeof(T);
    auto* const at = static_cast<T*>(driver_->memory(driver_->self, name.c_str(), bytes, &fresh));
    if (at == nullptr) throw absent("no memory for " + std::to_string(bytes >> 20) + " MB");
    if (fresh != 0) fill(at, count);
    return at;
  }
  template <class T>
  T* memory(const std::string& name, std::int64_t count) const {
    return memory<T>(name, count, [](T*, std::int64_t) {});
  }
  std::uint64_t seed() const { return seed_; }
  void spend(double seconds) const { driver_->spend(driver_->self, seconds); }

 private:
  const deeprec_bodies_host* driver_;
  std::uint64_t seed_;
};

/// Goes round `count` parts of an input, over all states of both commits, so that none finds in the caches
/// what it or the other one has just used.
class turns {
 public:
  turns(const host& h, std::int64_t count) : at_(h.memory<std::int64_t>("turn", 1)), count_(count) {}
  std::int64_t next() const { return (*at_)++ % count_; }

 private:
  std::int64_t* at_;
  std::int64_t count_;
};

/// Bytes that the machine's last level of cache doesn't hold: 2.5 times as many, 256 MB to 1.5 GB.
inline std::int64_t cold_bytes() {
  constexpr std::int64_t least = std::int64_t{256} << 20, most = std::int64_t{3} << 29;
  return std::clamp<std::int64_t>(::sysconf(_SC_LEVEL3_CACHE_SIZE) * 5 / 2, least, most);
}

/// Every 16-bit half is a bf16 and an f16 of ordinary size, every word such a float.
inline void fill_rows(char* memory, std::int64_t bytes) {
  for (std::int64_t i = 0; i + 8 <= bytes; i += 8) {
    const std::uint64_t word =
        (draw(1, static_cast<std::uint64_t>(i)) & 0x03ff03ff03ff03ffU) | 0x3c003c003c003c00U;
    std::memcpy(memory + i, &word, 8);
  }
}

template <class T>
std::uint64_t checksum_of(const T* values, std::int64_t count) noexcept {
  const auto* const bytes = reinterpret_cast<const char*>(values);
  const std::size_t size = static_cast<std::size_t>(count) * sizeof(T);
  std::uint64_t sum = size;
  for (std::size_t i = 0; i < size; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + i, std::min<std::size_t>(8, size - i));
    sum = (sum ^ word) * 0x9e3779b97f4a7c15U;
    sum ^= sum >> 32;
  }
  return sum;
}

namespace detail {

template <class State>
struct held {
  held(const deeprec_bodies_host* d, std::uint64_t seed) : driver(d), state(host(d, seed)) {}
  const deeprec_bodies_host* driver;
  State state;
};

template <class State>
void* make(const deeprec_bodies_host* driver, std::uint64_t seed) noexcept {
  try {
    return new held<State>(driver, seed);
  } catch (const absent& why) {
    driver->absent(driver->self, why.what());
  } catch (const std::exception& why) {
    driver->fault(driver->self, why.what());
  }
  return nullptr;
}
template <class State>
int run(void* state) noexcept {
  auto* const it = static_cast<held<State>*>(state);
  try {
    it->state.run();
    return 0;
  } catch (const std::exception& why) {
    it->driver->fault(it->driver->self, why.what());
    return 1;
  }
}
template <class State>
std::uint64_t checksum(void* state) noexcept {
  auto* const it = static_cast<held<State>*>(state);
  try {
    return it->state.checksum();
  } catch (const std::exception& why) {
    it->driver->fault(it->driver->self, why.what());
    return 0;
  }
}
template <class State>
void end(void* state) noexcept {
  delete static_cast<held<State>*>(state);
}

}  // namespace detail

template <class State>
constexpr deeprec_body body(const char* name, const char* item, std::uint32_t threads = 1) {
  return {name,
          threads,
          State::items,
          item,
          &detail::make<State>,
          &detail::run<State>,
          &detail::checksum<State>,
          &detail::end<State>};
}

}  // namespace deeprec_bodies_of

#define DEEPREC_BODIES(...)                                                                      \
  extern "C" const deeprec_bodies_table* deeprec_bodies(void) {                                  \
    static constexpr deeprec_body all[] = {__VA_ARGS__};                                         \
    static constexpr deeprec_bodies_table table = {DEEPREC_BODIES_VERSION, std::size(all), all}; \
    return &table;                                                                               \
  }
