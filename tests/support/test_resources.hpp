// Memory resources that watch, and that keep their blocks apart; and an executor that says when
// its bodies run.
#pragma once

#include <cstddef>
#include <memory>
#include <memory_resource>
#include <thread>
#include <vector>

#include <deeprec/core/executor.hpp>
#include <deeprec/memory/refusing_resource.hpp>

namespace deeprec_test {

using deeprec::index_t;

using deeprec::allowance;
using deeprec::refusing_resource;

inline bool& inside_a_body() {
  static thread_local bool inside = false;
  return inside;
}

/// Runs pieces one after the other under changing numbers of workers, and marks the bodies.
struct marking_executor {
  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) const {
    const bool before = inside_a_body();
    inside_a_body() = true;
    for (index_t begin = 0; begin < n; begin += grain) {
      body(begin, n - begin > grain ? begin + grain : n, static_cast<int>(begin / grain % concurrency()));
    }
    inside_a_body() = before;
  }
  [[nodiscard]] static constexpr int concurrency() noexcept { return 3; }
};
static_assert(deeprec::BulkExecutor<marking_executor>);

/// Counts what it is asked for inside of a body, or by another thread than the one that made it.
class watching_resource final : public std::pmr::memory_resource {
 public:
  int allocations = 0;
  int misplaced = 0;

 private:
  bool well_placed() const { return !inside_a_body() && std::this_thread::get_id() == owner_; }
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    ++allocations;
    if (!well_placed()) ++misplaced;
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* p, std::size_t bytes, std::size_t alignment) override {
    if (!well_placed()) ++misplaced;
    std::pmr::new_delete_resource()->deallocate(p, bytes, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  std::thread::id owner_ = std::this_thread::get_id();
};

/// Blocks with `margin` bytes of ordinary memory before and behind them, given back when the resource ends.
class apart_resource final : public std::pmr::memory_resource {
 public:
  static constexpr std::size_t margin = 4096;

 private:
  void* do_allocate(std::size_t bytes, std::size_t) override {
    blocks_.push_back(
        std::make_unique<std::max_align_t[]>((bytes + 2 * margin) / sizeof(std::max_align_t) + 1));
    return reinterpret_cast<std::byte*>(blocks_.back().get()) + margin;
  }
  void do_deallocate(void*, std::size_t, std::size_t) override {}
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  std::vector<std::unique_ptr<std::max_align_t[]>> blocks_;
};

/// What an upstream default would be asked for, refused as long as this lives.
class no_default_resource {
 public:
  no_default_resource() : before_(std::pmr::set_default_resource(std::pmr::null_memory_resource())) {}
  no_default_resource(const no_default_resource&) = delete;
  no_default_resource& operator=(const no_default_resource&) = delete;
  ~no_default_resource() { std::pmr::set_default_resource(before_); }

 private:
  std::pmr::memory_resource* before_;
};

}  // namespace deeprec_test
