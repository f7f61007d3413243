// The common part of the executors in interop/: one parallel_for, cut into pieces that threads take in order.
//
//   [0, n) ──> piece 0 | piece 1 | ...      runner w:  while (a piece is left) body(begin, end, w)
//
// A host framework only has to start some runners, each with its own number, and to wait for them.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// One parallel_for. Pieces are handed out in order, so every piece before one that throws has begun,
/// and the smallest begin that throws is the same for any number of threads.
template <class Body>
class bulk_pieces {
 public:
  /// @pre n > 0, grain > 0
  bulk_pieces(index_t n, index_t grain, Body& body) noexcept
      : body_(body), n_(n), grain_(grain), pieces_((n - 1) / grain + 1) {}
  bulk_pieces(const bulk_pieces&) = delete;
  bulk_pieces& operator=(const bulk_pieces&) = delete;

  /// The number of runners that have work to do, at most `limit`.
  [[nodiscard]] int runners(int limit) const noexcept {
    return pieces_ < limit ? static_cast<int>(pieces_) : limit;
  }

  /// Takes pieces until none is left, or until a body has thrown. Never throws.
  void run(int worker) noexcept {
    while (!failed_.load(std::memory_order_relaxed)) {
      const index_t piece = next_.fetch_add(1, std::memory_order_relaxed);
      if (piece >= pieces_) return;
      const index_t begin = piece * grain_;
      const index_t end = n_ - begin > grain_ ? begin + grain_ : n_;
#if DEEPREC_EXCEPTIONS
      try {
        body_(begin, end, worker);
      } catch (...) {
        std::lock_guard lock(mutex_);
        if (!failure_ || begin < failed_at_) {
          failure_ = std::current_exception();
          failed_at_ = begin;
        }
        failed_.store(true, std::memory_order_relaxed);
      }
#else
      body_(begin, end, worker);
#endif
    }
  }

  /// Rethrows the exception that was kept. Call it when every runner has returned.
  void rethrow() {
#if DEEPREC_EXCEPTIONS
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
#endif
  }

 private:
  Body& body_;
  const index_t n_;
  const index_t grain_;
  const index_t pieces_;
  std::atomic<index_t> next_{0};  // relaxed: a piece number carries no data with it
  std::atomic<bool> failed_{false};
#if DEEPREC_EXCEPTIONS
  std::mutex mutex_;
  std::exception_ptr failure_;
  index_t failed_at_ = 0;
#endif
};

/// parallel_for on a framework's threads: start(width, run) calls run(w) once for every w in [0, width), on
/// any threads, and returns when all have returned.
template <class Body, class Start>
void run_pieces(index_t n, index_t grain, int concurrency, Body& body, Start&& start) {
  DEEPREC_EXPECTS(grain > 0);
  if (n <= 0) return;
  bulk_pieces<Body> pieces(n, grain, body);
  const int width = pieces.runners(concurrency);
  if (width <= 1) {
    pieces.run(0);
  } else {
    start(width, [&pieces](int worker) noexcept { pieces.run(worker); });
  }
  pieces.rethrow();
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
