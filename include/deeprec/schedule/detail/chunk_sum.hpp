// The gradients of the parts of a batch as one: weighted, and summed in the order of the parts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/batch_traits.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/schedule/micro_chunk.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The sum of a gradient over the chunks of a batch.
class chunk_sum {
 public:
  chunk_sum() = default;
  chunk_sum(const chunk_sum&) = delete;
  chunk_sum& operator=(const chunk_sum&) = delete;
  virtual ~chunk_sum() = default;
  /// Before the first chunk of a batch, where chunks run by lanes.
  virtual void begin(index_t /*chunks*/) {}
  /// After the stage of a chunk: in the order of the chunks, or by lanes in any order and on any threads.
  virtual void add(const micro_chunk& chunk) = 0;
  /// After the last one: the sum takes the place of the gradient.
  virtual void put_back(executor_ref on) = 0;
};

/// Each chunk overwrites the gradient.
template <class Gradient>
class overwritten_gradient final : public chunk_sum {
 public:
  explicit overwritten_gradient(Gradient gradient) : gradient_(std::move(gradient)) {}
  void add(const micro_chunk& chunk) override {
    decltype(auto) part = gradient_();
    if constexpr (is_matrix_view<value_type>) {
      const auto columns = static_cast<std::size_t>(part.extent(1));
      sum_.resize(static_cast<std::size_t>(part.extent(0)) * columns);
      for (index_t i = 0; i < part.extent(0); ++i) {
        float* const sum = sum_.data() + static_cast<std::size_t>(i) * columns;
        if (chunk.number == 0) {
          scale_into(sum, part.row(i), chunk.weight, part.extent(1));
        } else {
          add_weighted(sum, part.row(i), chunk.weight, part.extent(1));
        }
      }
    } else {
      if (chunk.number == 0) batch_traits<value_type>::clear(sum_);
      batch_traits<value_type>::accumulate(sum_, part, chunk.weight);
    }
  }
  void put_back(executor_ref) override {
    decltype(auto) part = gradient_();
    if constexpr (is_matrix_view<value_type>) {
      for (index_t i = 0; i < part.extent(0); ++i) {
        std::copy_n(sum_.data() + i * part.extent(1), part.extent(1), part.row(i));
      }
    } else {
      using std::swap;
      swap(part, sum_);
    }
  }

 private:
  using value_type = std::remove_cvref_t<std::invoke_result_t<Gradient&>>;
  Gradient gradient_;
  std::conditional_t<is_matrix_view<value_type>, std::vector<float>, value_type> sum_{};
};

/// Each chunk overwrites the gradient of its lane. The sum is a tree over the chunks: whoever brings the
/// second of two neighbours adds them, and goes on with the sum.
///
///   0   1   2   3   4      chunks of one thread are neighbours: most sums are in its caches
///    \ /     \ /    |
///      \    /       |      a + b has the bits of b + a, so nothing depends on who came first
///        ---------- root
template <class Gradient, class Into>
class tree_of_gradients final : public chunk_sum {
 public:
  tree_of_gradients(Gradient gradient, Into into) : gradient_(std::move(gradient)), into_(std::move(into)) {}
  void begin(index_t chunks) override {
    chunks_ = chunks;
    waiting_.assign(static_cast<std::size_t>(2 * chunks + 64), none);  // more than all levels have nodes
    free_.clear();
    for (std::size_t b = 0; b < buffers_.size(); ++b) free_.push_back(b);
  }
  void add(const micro_chunk& chunk) override {
    const matrix_view<float> part = gradient_(chunk);
    if (chunk.weight != 1) scale(part, chunk.weight);  // before the sum: rounded whichever comes first
    std::size_t mine = none;                           // none: still where the chunk left it
    index_t at = chunk.number, nodes_below = 0;
    for (index_t width = chunks_; width > 1; width = (width + 1) / 2, at /= 2) {
      const auto node = static_cast<std::size_t>(nodes_below + at / 2);
      nodes_below += (width + 1) / 2;
      if ((at ^ 1) >= width) continue;  // the last one of its level has no neighbour
      std::size_t other = meet(node, mine);
      if (other == none && mine == none) {
        mine = copy_of(part);
        other = meet(node, mine);
      }
      if (other == none) return;  // the neighbour goes on
      add_to(buffers_[other], mine == none ? part : view_of(buffers_[mine], part));
      if (mine != none) give_back(mine);
      mine = other;
    }
    root_ = mine != none ? mine : copy_of(part);
  }
  void put_back(executor_ref) override {
    const matrix_view<float> into = into_();
    const matrix_view<float> sum = view_of(buffers_[root_], into);
    for (index_t i = 0; i < into.extent(0); ++i) std::copy_n(sum.row(i), into.extent(1), into.row(i));
  }

 private:
  using floats = std::vector<float>;
  static constexpr std::size_t none = static_cast<std::size_t>(-1);

  static void scale(const matrix_view<float>& part, float weight) {
    for (index_t i = 0; i < part.extent(0); ++i) scale_into(part.row(i), part.row(i), weight, part.extent(1));
  }
  static matrix_view<float> view_of(floats& values, const matrix_view<float>& shape) {
    return {values.data(), shape.extent(0), shape.extent(1)};
  }
  static void add_to(floats& sum, const matrix_view<float>& part) {
    for (index_t i = 0; i < part.extent(0); ++i) {
      add_weighted(sum.data() + i * part.extent(1), part.row(i), 1, part.extent(1));
    }
  }

  // The neighbour's buffer, where it is there; else leaves `mine` for it, if that is a buffer.
  std::size_t meet(std::size_t node, std::size_t mine) {
    const std::lock_guard lock(mutex_);
    const std::size_t other = waiting_[node];
    if (other == none) waiting_[node] = mine;
    return other;
  }
  std::size_t copy_of(const matrix_view<float>& part) {
    std::size_t at = none;
    {
      const std::lock_guard lock(mutex_);
      if (free_.empty()) {
        free_.reserve(buffers_.size() + 1);  // give_back() allocates nothing
        buffers_.emplace_back();
        free_.push_back(buffers_.size() - 1);
      }
      at = free_.back();
      free_.pop_back();
    }
    floats& to = buffers_[at];
    to.resize(static_cast<std::size_t>(part.extent(0) * part.extent(1)));
    for (index_t i = 0; i < part.extent(0); ++i) {
      std::copy_n(part.row(i), part.extent(1), to.data() + i * part.extent(1));
    }
    return at;
  }
  void give_back(std::size_t buffer) {
    const std::lock_guard lock(mutex_);
    free_.push_back(buffer);
  }

  Gradient gradient_;
  Into into_;
  index_t chunks_ = 0;
  std::mutex mutex_;
  std::vector<std::size_t> waiting_;  // of each node, the buffer of the child that came first
  std::deque<floats> buffers_;        // stay in place
  std::vector<std::size_t> free_;     // the last one is the warmest
  std::size_t root_ = none;
};

/// Each chunk writes the rows of its samples.
template <class Gradient>
class gradient_of_samples final : public chunk_sum {
 public:
  explicit gradient_of_samples(Gradient gradient) : gradient_(std::move(gradient)) {}
  void add(const micro_chunk& chunk) override {
    if (chunk.weight == 1) return;
    const matrix_view<float> rows = chunk.of(matrix_view<float>(gradient_()));
    for (index_t i = 0; i < rows.extent(0); ++i) {
      scale_into(rows.row(i), rows.row(i), chunk.weight, rows.extent(1));
    }
  }
  void put_back(executor_ref) override {}

 private:
  Gradient gradient_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
