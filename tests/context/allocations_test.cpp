// No verb allocates behind the context's back. Every verb runs with an arena as the context's memory; each
// form of operator new is counted, Eigen's own heap is watched, and the default resource refuses. Not here:
// what oneDNN allocates for itself (products go to the other backends).
#include "context/heap_counts.hpp"  // before Eigen

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory_resource>
#include <new>
#include <string>
#include <vector>

#include <Eigen/Core>

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "context/every_verb.hpp"
#include "support/test_resources.hpp"

namespace deeprec_test {
std::atomic<long> calls_of_new{0};
std::atomic<long> calls_of_eigen{0};
}  // namespace deeprec_test

namespace {
using deeprec_test::calls_of_new;

void* counted(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) noexcept {
  calls_of_new.fetch_add(1, std::memory_order_relaxed);
  return std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
}
void* counted_or_throw(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
  void* const p = counted(bytes, alignment);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
}  // namespace

// Not inlined: the compiler would take the pair of malloc and operator delete for a mistake.
[[gnu::noinline]] void* operator new(std::size_t n) { return counted_or_throw(n); }
[[gnu::noinline]] void* operator new[](std::size_t n) { return counted_or_throw(n); }
[[gnu::noinline]] void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return counted(n); }
[[gnu::noinline]] void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return counted(n); }
[[gnu::noinline]] void* operator new(std::size_t n, std::align_val_t a) {
  return counted_or_throw(n, static_cast<std::size_t>(a));
}
[[gnu::noinline]] void* operator new[](std::size_t n, std::align_val_t a) {
  return counted_or_throw(n, static_cast<std::size_t>(a));
}
[[gnu::noinline]] void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return counted(n, static_cast<std::size_t>(a));
}
[[gnu::noinline]] void* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return counted(n, static_cast<std::size_t>(a));
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }

using namespace deeprec_test;

namespace {

struct counting_sink final : trace_sink {
  long begins = 0, ends = 0;
  void begin(const char*) noexcept override { ++begins; }
  void end(const char*) noexcept override { ++ends; }
};

/// Runs a verb with an arena as its memory, twice to warm up and once to count.
class counter final : public verb_check {
 public:
  explicit counter(executor_ref on) : verb_check(on) {
    ctx.memory = &memory_;
    ctx.trace = &sink_;
  }
  void run(const char* name, const std::function<status(const verb_context&)>& verb) override {
    CAPTURE(std::string(name));
    count(verb);
    count(verb);
    CHECK(count(verb) == 0);
    CHECK(sink_.begins == sink_.ends);
  }

 private:
  long count(const std::function<status(const verb_context&)>& verb) {
    memory_.rewind();
    const no_default_resource none;
    calls_of_eigen = 0;
    Eigen::internal::set_is_malloc_allowed(false);
    const long before = calls_of_new;
    const status s = verb(ctx);
    const long calls = calls_of_new - before + calls_of_eigen;
    Eigen::internal::set_is_malloc_allowed(true);
    CHECK(s.message() == "ok");
    return calls;
  }

  arena memory_;
  counting_sink sink_;
};

}  // namespace

TEST_CASE_TEMPLATE("no verb allocates behind the context's back", Executor, inline_executor, thread_pool) {
  Executor executor;
  counter check(executor);
  for_each_verb(check);
}

TEST_CASE("operator new and Eigen's heap are counted") {
  const long before = calls_of_new;
  constexpr std::align_val_t line{64};
  ::operator delete(::operator new(8));  // calls, since a compiler may leave out a new that is deleted
  ::operator delete[](::operator new[](8));
  ::operator delete(::operator new(8, std::nothrow));
  ::operator delete[](::operator new[](8, std::nothrow));
  ::operator delete(::operator new(8, line), line);
  ::operator delete[](::operator new[](8, line), line);
  ::operator delete(::operator new(8, line, std::nothrow), line);
  ::operator delete[](::operator new[](8, line, std::nothrow), line);
  CHECK(calls_of_new - before == 8);
  calls_of_eigen = 0;
  Eigen::internal::set_is_malloc_allowed(false);
  std::free(Eigen::internal::aligned_malloc(64));
  Eigen::internal::set_is_malloc_allowed(true);
  CHECK(calls_of_eigen > 0);
}
