// Calls of every public verb that has a context, with inputs that need all of their scratch. Compiled once,
// in every_verb.cpp, on a type-erased executor. Not here: files, which have no context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory_resource>
#include <new>
#include <vector>

#include <deeprec/core/context.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/exec/executor_ref.hpp>

namespace deeprec_test {

using namespace deeprec;

using verb_context = context<executor_ref>;

/// A buffer handed out from front to back; rewound between calls.
class arena final : public std::pmr::memory_resource {
 public:
  arena() : bytes_(std::size_t{96} << 20) {}
  void rewind() noexcept { used_ = 0; }

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    const auto first = reinterpret_cast<std::uintptr_t>(bytes_.data()) + used_;
    const std::size_t gap = (alignment - first % alignment) % alignment;
    if (gap + bytes > bytes_.size() - used_) throw std::bad_alloc();
    used_ += gap + bytes;
    return reinterpret_cast<void*>(first + gap);
  }
  void do_deallocate(void*, std::size_t, std::size_t) override {}
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  std::vector<std::byte> bytes_;
  std::size_t used_ = 0;
};

/// What is checked of each verb: run(name, verb), where verb(ctx) calls it.
class verb_check {
 public:
  explicit verb_check(executor_ref on) : executor(on) {}
  verb_check(const verb_check&) = delete;
  verb_check& operator=(const verb_check&) = delete;
  virtual ~verb_check() = default;
  virtual void run(const char* name, const std::function<status(const verb_context&)>& verb) = 0;

  template <class Verb>
  void operator()(const char* name, const Verb& verb) {
    run(name, std::ref(verb));
  }

  executor_ref executor;
  verb_context ctx{executor};
};

/// Hands every verb to the check.
void for_each_verb(verb_check& check);

}  // namespace deeprec_test
