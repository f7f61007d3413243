// A step of dense tensors whose gradients are summed by the engine, and which each rank steps whole.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory_resource>
#include <span>
#include <vector>

#include <deeprec/comm/communicator.hpp>
#include <deeprec/comm/rank_values.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/queue/queue_result.hpp>
#include <deeprec/sharding/dense_tensor.hpp>
#include <deeprec/sharding/detail/dense_layout.hpp>
#include <deeprec/sharding/detail/dense_pieces.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Optimizer, class Comm>
class engine_dense {
  static_assert(
      SummingCommunicator<Comm>,
      "deeprec::dense_step: the communicator has no sum of its own. Fix: sums::in_order, or a member "
      "sum(std::span<float>, const wait_limit&).");

 public:
  engine_dense(std::span<const dense_tensor> tensors, const dense_layout& layout, Comm& comm,
               std::pmr::memory_resource* memory)
      : tensors_(tensors),
        layout_(&layout),
        comm_(&comm),
        agreed_(comm.size(), memory),
        first_(memory),
        gradients_(memory),
        state_(memory) {
    index_t floats = 0, state = 0;
    for (std::size_t b = 0; b < layout.buckets(); ++b) {
      first_.push_back(floats);
      floats += layout.floats_in(b);
      all_pieces(
          b, [&](const dense_piece& p) { state += state_of_piece<Optimizer>(p, layout.width(p.tensor)); });
    }
    gradients_.resize(static_cast<std::size_t>(floats));
    state_.resize(static_cast<std::size_t>(state));
  }

  [[nodiscard]] index_t state_floats() const noexcept { return static_cast<index_t>(state_.size()); }

  void take(std::size_t tensor) noexcept {
    const std::size_t b = layout_->bucket_of(tensor);
    layout_->for_slices(tensor, [&](int, const dense_piece& p, index_t) {
      std::memcpy(gradients_.data() + first_[b] + p.at, tensors_[tensor].gradient.data_handle() + p.first,
                  static_cast<std::size_t>(p.count) * sizeof(float));
    });
  }
  [[nodiscard]] static bool in_flight() noexcept { return false; }
  void poll(index_t) noexcept {}  // sums are made in run()

  template <class Context>
  DEEPREC_PER_UNIT status run(const Context& ctx, const Optimizer& optimizer, index_t step,
                              const status& fault, const wait_limit& limit) {
    if (const status s = agreed_.trade(*comm_, step, 0, fault, limit); !s) return s;
    for (std::size_t b = 0; b < layout_->buckets(); ++b) {
      const std::span<float> all(gradients_.data() + first_[b],
                                 static_cast<std::size_t>(layout_->floats_in(b)));
      if (const status s = comm_->sum(all, limit); !s) return s;
    }
    float* state = state_.data();
    status s;
    for (std::size_t b = 0; b < layout_->buckets(); ++b) {
      all_pieces(b, [&](const dense_piece& p) {
        state = step_piece(ctx, optimizer, p, layout_->width(p.tensor), gradients_.data() + first_[b] + p.at,
                           tensors_[p.tensor].parameters.data_handle(), state, s);
      });
    }
    if (!s) comm_->abandon(s);  // the other ranks have stepped
    return s;
  }

 private:
  template <class Each>
  void all_pieces(std::size_t b, const Each& each) const {
    layout_->for_pieces(b, 0, layout_->floats_in(b), each);
  }

  std::span<const dense_tensor> tensors_;
  const dense_layout* layout_;
  Comm* comm_;
  rank_values<int> agreed_;
  std::pmr::vector<index_t> first_;    // of the buckets
  std::pmr::vector<float> gradients_;  // of all buckets
  std::pmr::vector<float> state_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
