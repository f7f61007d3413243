// Operations: verbs as values. What a group, a step graph, a memory planner and a trace need to know of a
// verb before it runs.
//
//   lookup_op op(table, bags, combiner::sum, out);
//   op.check();                          shapes; reads no ids
//   op.scratch_bytes(ctx);               scratch that run() takes on this context
//   op.for_each_effect([](effect e) {}); memory that it reads and writes
//   op.run(ctx, scratch);
//
// A free verb makes its operation and passes it to run_now. An operation refers to its operands and owns
// none.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/scratch_block.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/core/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

enum class access_mode : unsigned char { reads, writes, updates };

/// Memory that an operation accesses. It has no extent: effects are of one operand where their first bytes
/// are the same, so a matrix and a block of its columns or rows are two operands (a block at its begin is
/// it). Reported are the block of rows of a source that has one (not keyed and partitioned tables), ids, what
/// is written, and gradients; neither offsets, weights and resolved rows, nor what an optimizer holds
/// elsewhere.
struct effect {
  const void* data;  ///< the first byte: identifies the operand
  access_mode mode;
  bool on_device;  ///< in device_space
};

namespace detail {

struct any_effect_sink {
  void operator()(const effect&) const {}
};

template <MemorySpace Space>
constexpr effect effect_on(const void* data, access_mode mode) noexcept {
  return {data, mode, std::is_same_v<Space, device_space>};
}

}  // namespace detail

/// An operation that contexts of type Context run. The scratch of run() begins at a multiple of 64 bytes.
template <class Op, class Context>
concept Operation = requires(const Op& op, const Context& ctx, std::span<std::byte> scratch) {
  { op.name() } -> std::convertible_to<const char*>;
  { op.check() } -> std::same_as<status>;
  { op.scratch_bytes(ctx) } -> std::same_as<index_t>;
  op.for_each_effect(detail::any_effect_sink{});
  { op.run(ctx, scratch) } -> std::same_as<status>;
};

namespace detail {

/// The rest of a verb_call: checks an operation and runs it with scratch of the context's resource.
template <class Context, class Op>
DEEPREC_PER_UNIT DEEPREC_INLINE status run_begun(const Context& ctx, const Op& op) {
  if (const status s = op.check(); !s) return s.in_operation(op.name());
  return or_out_of_memory(op.name(), [&]() __attribute__((always_inline)) -> status {
    const index_t bytes = op.scratch_bytes(ctx);
    const scratch_block scratch(ctx.memory, bytes);
    return op.run(ctx, {scratch.data(), static_cast<std::size_t>(bytes)});
  });
}

/// A verb that is one operation.
template <class Context, class Op>
DEEPREC_PER_UNIT DEEPREC_INLINE status run_now(const Context& ctx, const Op& op) {
  const verb_call call(ctx, op.name());
  if (!call) return call.stopped();
  return run_begun(ctx, op);
}

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
