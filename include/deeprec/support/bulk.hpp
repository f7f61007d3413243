// The parallel work of a verb on the host: on the executor where that ends sooner, else on the calling
// thread.
//
//   detail::run_bulk(ctx, {.units = rows, .grain = 64, .ns = detail::ns_of_bytes(*ctx.tuning, rows * bytes)},
//                    [&](index_t begin, index_t end, int worker) { ... });
//
// A second thread costs the time until it begins: about a microsecond where it polls for work, and fifty
// where it sleeps. An executor with a member bool polls() reports which of them; without one it sleeps.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/kernel_tuning.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// `units` of work, for a thread in pieces of `grain`, which one thread ends in about `ns`.
struct bulk_work {
  index_t units;
  index_t grain;
  double ns;
};

inline double ns_of_bytes(const kernel_tuning& tuning, index_t bytes) noexcept {
  return static_cast<double>(bytes) * 1000 / static_cast<double>(tuning.bytes_per_us);
}
inline double ns_of_products(const kernel_tuning& tuning, index_t m, index_t n, index_t k) noexcept {
  return 2000.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) /
         static_cast<double>(tuning.flops_per_us);
}
/// Of one random row of a table.
inline double ns_of_row(const kernel_tuning& tuning, index_t table_rows, index_t row_bytes) noexcept {
  const index_t whole_lines = (row_bytes + 63) / 64;
  const auto lines = static_cast<double>(whole_lines);
  return table_rows > tuning.kept_bytes / (std::max)(row_bytes, index_t{1})
             ? static_cast<double>(tuning.row_ns) + lines * static_cast<double>(tuning.line_ns)
             : 2 + lines;
}

/// Units of a piece of work that one thread takes at once.
inline index_t grain_for(const kernel_tuning& tuning, index_t units, double ns) noexcept {
  const double pieces = ns / static_cast<double>(tuning.piece_ns);
  return pieces <= 1 ? (std::max)(units, index_t{1})
                     : (std::max)(static_cast<index_t>(static_cast<double>(units) / pieces), index_t{1});
}

/// How many threads of an executor run at once.
template <class E>
int threads_at_once(E& executor) {
  if constexpr (requires { static_cast<int>(executor.processors()); }) {
    return static_cast<int>(executor.processors());
  } else {
    return static_cast<int>(executor.concurrency());
  }
}

/// True where work of that time ends sooner with a second thread: half of it must be longer than its start.
template <class Context>
bool is_shared(const Context& ctx, double ns) {
  if (threads_at_once(*ctx.executor) < 2) return false;
  const kernel_tuning& tuning = *ctx.tuning;
  if (ns <= 2 * static_cast<double>(tuning.polling_ns)) return false;
  if constexpr (requires { static_cast<bool>(ctx.executor->polls()); }) {
    if (ctx.executor->polls()) return true;
  }
  return ns > 2 * static_cast<double>(tuning.parked_ns);
}

inline namespace DEEPREC_UNIT {

/// Refers to the body of a piece of work: one type, so that all bodies share the executor's parallel_for.
class bulk_body {
 public:
  template <class Body>
  explicit bulk_body(Body& body) noexcept
      : body_(&body), call_([](const void* to, index_t begin, index_t end, int worker) {
          (*static_cast<Body*>(const_cast<void*>(to)))(begin, end, worker);
        }) {}
  void operator()(index_t begin, index_t end, int worker) const { call_(body_, begin, end, worker); }

 private:
  const void* body_;
  void (*call_)(const void*, index_t, index_t, int);
};

}  // namespace DEEPREC_UNIT

/// Calls body(begin, end, worker) for pieces that cover [0, units): see BulkExecutor.
template <class Context, class Body>
void run_bulk(const Context& ctx, const bulk_work& work, Body&& body) {
  if (work.units <= 0) return;
  if (work.units <= work.grain || !is_shared(ctx, work.ns)) {
    body(index_t{0}, work.units, 0);
  } else {
    const bulk_body erased(body);
    ctx.executor->parallel_for(work.units, work.grain, erased);
  }
}

/// Parts of some units, one for each thread. A thread takes units of its part, then of the other parts.
class bulk_parts {
 public:
  static constexpr int most = 32;

  /// Of [0, units).
  bulk_parts(int parts, index_t units, index_t grain) noexcept
      : parts_(std::clamp(parts, 1, most)), units_(units), grain_(grain) {
    const index_t each = units / parts_, longer = units % parts_;
    for (int p = 0; p <= parts_; ++p) begin_at(p, p * each + (std::min)(index_t{p}, longer));
  }
  /// The units [firsts[p], firsts[p + 1]) are those of part p, the first from 0 on.
  bulk_parts(int parts, const index_t* firsts, index_t grain) noexcept
      : parts_(parts), units_(firsts[parts]), grain_(grain) {
    for (int p = 0; p <= parts_; ++p) begin_at(p, firsts[p]);
  }

  [[nodiscard]] int parts() const noexcept { return parts_; }
  [[nodiscard]] index_t units() const noexcept { return units_; }
  /// Calls body(begin, end) until nothing is left: of part `home` first, a quarter of what is left of it at a
  /// time, and no less than the grain.
  template <class Body>
  void take_from(int home, const Body& body) {
    for (int k = 0; k < parts_; ++k) {
      const int part = (home + k) % parts_;
      const index_t end = first_[part + 1];
      std::atomic<index_t>& next = next_[part].unit;
      index_t begin = next.load(std::memory_order_relaxed);  // a number carries no data with it
      while (begin < end) {
        const index_t count = (std::min)((std::max)((end - begin) / 4, grain_), end - begin);
        if (!next.compare_exchange_weak(begin, begin + count, std::memory_order_relaxed)) continue;
        body(begin, begin + count);
        begin = next.load(std::memory_order_relaxed);
      }
    }
  }

 private:
  struct alignas(64) position {
    std::atomic<index_t> unit;
  };
  void begin_at(int part, index_t first) noexcept {
    first_[part] = first;
    if (part < parts_) next_[part].unit.store(first, std::memory_order_relaxed);
  }

  position next_[most];
  index_t first_[most + 1];
  int parts_;
  index_t units_, grain_;
};

/// The same, where a thread should work on the same units from call to call: worker w begins with part w. For
/// bodies that don't throw.
template <class Context, class Body>
void run_bulk_in_parts(const Context& ctx, bulk_parts& parts, double ns, Body&& body) {
  if (parts.units() <= 0) return;
  if (parts.parts() == 1 || parts.units() == 1 || !is_shared(ctx, ns)) {
    body(index_t{0}, parts.units(), 0);
    return;
  }
  const auto take = [&](index_t, index_t, int worker) {
    parts.take_from(worker, [&](index_t begin, index_t end) { body(begin, end, worker); });
  };
  const bulk_body erased(take);
  ctx.executor->parallel_for(index_t{parts.parts()}, index_t{1}, erased);
}
/// With equal parts of the units.
template <class Context, class Body>
void run_bulk_in_parts(const Context& ctx, const bulk_work& work, Body&& body) {
  bulk_parts parts(work.units <= work.grain ? 1 : threads_at_once(*ctx.executor), work.units, work.grain);
  run_bulk_in_parts(ctx, parts, work.ns, body);
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
