// The spans of one thread, which writes them without locks while others read those that have ended.
//
//   spans    | a b c d . . |  used = 4      open    a c      b and d have ended
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/trace.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The number of this thread among all that asked; never used again.
inline std::uint64_t thread_number() noexcept {
  static std::atomic<std::uint64_t> given{0};
  thread_local const std::uint64_t mine = given.fetch_add(1, std::memory_order_relaxed) + 1;
  return mine;
}

struct span_record {
  const char* name = nullptr;
  std::int64_t begin = 0;
  std::atomic<std::int64_t> end{0};  // 0: it has not ended
  index_t bytes = 0;
  std::int32_t op = -1;
  std::int16_t stream = -1;
  std::int16_t depth = 0;
};

/// @threads open() and close() by its thread alone
struct alignas(64) span_buffer {
  static constexpr int deepest = 62;

  void open(const traced_op& op, std::int64_t now) noexcept {
    const int at_depth = depth++;
    // relaxed: of these two this thread alone is the writer
    const index_t at = used.load(std::memory_order_relaxed);
    if (at_depth >= deepest || at == static_cast<index_t>(spans.size())) [[unlikely]] {
      if (at_depth < deepest) begun[static_cast<std::size_t>(at_depth)] = -1;
      dropped.store(dropped.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      return;
    }
    span_record& r = spans[static_cast<std::size_t>(at)];
    r.name = op.name;
    r.begin = now;
    r.end.store(0, std::memory_order_relaxed);
    r.bytes = op.bytes;
    r.op = static_cast<std::int32_t>(op.op);
    r.stream = static_cast<std::int16_t>(op.stream);
    r.depth = static_cast<std::int16_t>(at_depth);
    begun[static_cast<std::size_t>(at_depth)] = static_cast<std::int32_t>(at);
    used.store(at + 1, std::memory_order_release);
  }
  void close(std::int64_t now) noexcept {
    if (depth == 0) return;  // begun before the sink was set
    const int at_depth = --depth;
    if (at_depth >= deepest) return;
    const std::int32_t at = begun[static_cast<std::size_t>(at_depth)];
    if (at >= 0) spans[static_cast<std::size_t>(at)].end.store(now, std::memory_order_release);
  }

  std::atomic<std::uint64_t> owner{0};  // thread_number()
  std::span<span_record> spans;
  std::atomic<index_t> used{0};
  std::atomic<std::uint64_t> dropped{0};
  int depth = 0;
  std::array<std::int32_t, deepest> begun{};  // spans that have begun; -1: dropped
  std::array<char, 32> name{};
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
