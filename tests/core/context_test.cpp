// Contexts, executors and the backend that a verb goes to.

#include <deeprec/core/context.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/support/verb.hpp>

#include <doctest/doctest.h>
#include <memory_resource>
#include <stop_token>
#include <type_traits>

using namespace deeprec;

namespace {

// A host framework's pool, fitted in ten lines.
struct foreign_pool {
  int calls = 0;
  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) {
    ++calls;
    for (index_t begin = 0; begin < n; begin += grain) body(begin, begin + grain < n ? begin + grain : n, 0);
  }
  int concurrency() const { return 1; }
};
struct stream {
  struct backend {};
};
struct nothing {};

static_assert(BulkExecutor<foreign_pool> && !TaskExecutor<foreign_pool> && Executor<foreign_pool>);
static_assert(Executor<stream> && !BulkExecutor<stream> && !Executor<nothing>);
static_assert(std::is_same_v<detail::backend_of<context<foreign_pool>>, host_backend>);
static_assert(std::is_same_v<detail::backend_of<context<const inline_executor>>, host_backend>);
static_assert(std::is_same_v<detail::backend_of<context<stream>>, stream::backend>);
static_assert(std::is_same_v<context_for<foreign_pool>, context<foreign_pool>>);
static_assert(std::is_same_v<context_for<const inline_executor>, context<const inline_executor>>);
static_assert(std::is_same_v<context_for<context<foreign_pool>>, context<foreign_pool>>);
static_assert(std::is_convertible_v<foreign_pool&, context<foreign_pool>>);
static_assert(detail::is_context<context<stream>> && !detail::is_context<stream>);

}  // namespace

TEST_CASE("context: a plain executor converts, with defaults for the rest") {
  foreign_pool pool;
  const auto ctx = detail::as_context(pool);
  CHECK(ctx.executor == &pool);
  CHECK(ctx.memory == std::pmr::get_default_resource());
  CHECK(ctx.instruction_set == active_isa());
}

TEST_CASE("context: what was set stays set") {
  foreign_pool pool;
  std::pmr::monotonic_buffer_resource arena;
  context ctx{pool};
  ctx.memory = &arena;
  ctx.instruction_set = isa::portable;
  const auto same = detail::as_context(ctx);
  CHECK(same.memory == &arena);
  CHECK(same.instruction_set == isa::portable);
  same.executor->parallel_for(5, 2, [](index_t, index_t, int) {});
  CHECK(pool.calls == 1);
}

TEST_CASE("context: rebind keeps everything but the executor") {
  struct sink final : trace_sink {
    void begin(const char*) noexcept override {}
    void end(const char*) noexcept override {}
  } trace;
  foreign_pool pool;
  const inline_executor other;
  std::pmr::monotonic_buffer_resource arena;
  const std::stop_token stop;
  context ctx{pool};
  CHECK(ctx.stop == nullptr);
  CHECK(ctx.trace == nullptr);
  ctx.memory = &arena;
  ctx.instruction_set = isa::portable;
  ctx.stop = &stop;
  ctx.trace = &trace;
  const context<const inline_executor> on_other = ctx.rebind(other);
  CHECK(on_other.executor == &other);
  CHECK(on_other.memory == &arena);
  CHECK(on_other.instruction_set == isa::portable);
  CHECK(on_other.stop == &stop);
  CHECK(on_other.trace == &trace);
  CHECK(detail::begun(ctx).stop == nullptr);
  CHECK(detail::begun(ctx).trace == &trace);
}
