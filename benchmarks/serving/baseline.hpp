// What the serving suite compares with, each compiled with -O2 (namespace o2) and -O3 -march=native (native).
// No header of deeprec here.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace serving_bench {

/// A model that costs nothing to read.
struct small_model {
  explicit small_model(std::uint64_t n) : number(n) {}
  std::uint64_t number;
};

/// A place for the newest model, behind calls that each read many times.
struct holder {
  void* (*make)();  // with model 1
  void (*end)(void*);
  void (*publish)(void*, std::uint64_t number);
  std::uint64_t (*read)(void*, std::uint64_t times);          // the sum of numbers
  void (*time)(void*, std::uint32_t* ns, std::size_t count);  // of each reading, from its begin to its end
};

/// Of a class with publish(number) and read(use), which calls use(const small_model&).
template <class Holder>
holder holder_of() {
  return {[]() -> void* { return new Holder; }, [](void* h) { delete static_cast<Holder*>(h); },
          [](void* h, std::uint64_t number) { static_cast<Holder*>(h)->publish(number); },
          [](void* h, std::uint64_t times) {
            std::uint64_t sum = 0;
            for (std::uint64_t k = 0; k < times; ++k) {
              static_cast<Holder*>(h)->read([&](const small_model& m) { sum += m.number; });
            }
            return sum;
          },
          [](void* h, std::uint32_t* ns, std::size_t count) {
            std::uint64_t sum = 0;
            auto before = std::chrono::steady_clock::now();
            for (std::size_t k = 0; k < count; ++k) {
              static_cast<Holder*>(h)->read([&](const small_model& m) { sum += m.number; });
              const auto after = std::chrono::steady_clock::now();
              ns[k] = static_cast<std::uint32_t>((after - before).count());
              before = after;
            }
            if (sum == 0) ns[0] = 0;  // no model has the number 0
          }};
}

}  // namespace serving_bench

namespace o2 {
serving_bench::holder atomic_shared_ptr();
serving_bench::holder locked_shared_ptr();
}  // namespace o2
namespace native {
serving_bench::holder atomic_shared_ptr();
serving_bench::holder locked_shared_ptr();
}  // namespace native
