// A step of dense tensors whose gradients are summed in the order of the ranks.
//
//   slices      each bucket's gradients, by slices, to their ranks         begun in the order of the buckets
//   sums        of the own slice; the optimizer's step beside it           when all slices are there
//   parameters  the new values of the own slice, to all ranks
//   then the values of all slices go to the tensors
//
// A bucket has two exchanges in one pair of blocks, since what goes out first is as large as what comes in
// then. Nothing is written to a tensor before all values are there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory_resource>
#include <span>
#include <vector>

#include <deeprec/comm/communicator.hpp>
#include <deeprec/comm/exchange.hpp>
#include <deeprec/comm/message_header.hpp>
#include <deeprec/comm/slice_blocks.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/queue/queue_result.hpp>
#include <deeprec/sharding/dense_tensor.hpp>
#include <deeprec/sharding/detail/dense_layout.hpp>
#include <deeprec/sharding/detail/dense_pieces.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Optimizer, class Comm>
class ordered_dense {
 public:
  ordered_dense(std::span<const dense_tensor> tensors, const dense_layout& layout, Comm& comm,
                std::pmr::memory_resource* memory)
      : tensors_(tensors),
        layout_(&layout),
        comm_(&comm),
        ready_(layout.buckets(), memory),
        buckets_(memory),
        state_(memory) {
    buckets_.reserve(layout.buckets());
    index_t floats = 0;
    for (std::size_t b = 0; b < layout.buckets(); ++b) {
      buckets_.emplace_back(memory);
      buckets_.back().blocks.make(layout.borders(b), comm.rank());
      own_pieces(
          b, [&](const dense_piece& p) { floats += state_of_piece<Optimizer>(p, layout.width(p.tensor)); });
    }
    state_.resize(static_cast<std::size_t>(floats));
  }

  [[nodiscard]] index_t state_floats() const noexcept { return static_cast<index_t>(state_.size()); }

  /// The gradient of a tensor goes to the blocks.
  void take(std::size_t tensor) noexcept {
    const std::size_t b = layout_->bucket_of(tensor);
    const float* const from = tensors_[tensor].gradient.data_handle();
    layout_->for_slices(tensor, [&](int rank, const dense_piece& p, index_t at) {
      copy(buckets_[b].blocks.slice(rank).data() + at, from + p.first, p.count);
    });
    ++ready_[b];
  }
  /// Whether an exchange refers to the blocks.
  [[nodiscard]] bool in_flight() const noexcept { return done_ < begun_; }
  /// Begins the exchanges of buckets that are complete, and looks after those in flight. Not the last one: it
  /// has this rank's fault, which run() knows.
  void poll(index_t step) {
    while (ended_.ok() && begun_ + 1 < buckets_.size() && ready_[begun_] == layout_->tensors_in(begun_) &&
           static_cast<int>(begun_ - done_) < comm_->most_in_flight())
      begin(message_kind::slices, step, {});
    for (std::size_t b = done_; b < begun_; ++b) {
      if (comm_->poll(buckets_[b].x) != queue_result::not_now && b == done_) end_one({});
    }
  }

  template <class Context>
  DEEPREC_PER_UNIT status run(const Context& ctx, const Optimizer& optimizer, index_t step,
                              const status& fault, const wait_limit& limit) {
    exchange_all(message_kind::slices, step, limit, [&](std::size_t) { return fault; });
    if (status s = restart(); !s) return s;
    float* state = state_.data();
    exchange_all(message_kind::parameters, step, limit, [&](std::size_t b) {
      const status s = step_slice(ctx, optimizer, b, state);
      if (!s) comm_->abandon(s);  // the other ranks have gone on
      return s;
    });
    if (status s = restart(); !s) return s;
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      const std::span<const index_t> cut = layout_->borders(b);
      for (std::size_t r = 0; r + 1 < cut.size(); ++r) {
        const float* const values = buckets_[b].blocks.slice(static_cast<int>(r)).data();
        layout_->for_pieces(b, cut[r], cut[r + 1], [&](const dense_piece& p) {
          copy(tensors_[p.tensor].parameters.data_handle() + p.first, values + (p.at - cut[r]), p.count);
        });
      }
    }
    return {};
  }

 private:
  struct bucket {
    explicit bucket(std::pmr::memory_resource* memory) : blocks(memory) {}
    slice_blocks blocks;
    exchange x;
  };

  static void copy(float* to, const float* from, index_t count) noexcept {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
  }
  [[nodiscard]] index_t own_first(std::size_t b) const noexcept {
    return layout_->borders(b)[static_cast<std::size_t>(comm_->rank())];
  }
  template <class Each>
  void own_pieces(std::size_t b, const Each& each) const {
    layout_->for_pieces(b, own_first(b), layout_->borders(b)[static_cast<std::size_t>(comm_->rank()) + 1],
                        each);
  }

  /// Sums the own slice, steps its parameters in the own block, and copies them to those of the other ranks.
  template <class Context>
  DEEPREC_PER_UNIT status step_slice(const Context& ctx, const Optimizer& optimizer, std::size_t b,
                                     float*& state) {
    slice_blocks& blocks = buckets_[b].blocks;
    const std::span<const float> sums = blocks.sum();
    const std::span<float> values = blocks.slice(comm_->rank());
    const index_t first = own_first(b);
    status s;
    own_pieces(b, [&](const dense_piece& p) {
      float* const weights = values.data() + (p.at - first);
      copy(weights, tensors_[p.tensor].parameters.data_handle() + p.first, p.count);
      state = step_piece(ctx, optimizer, p, layout_->width(p.tensor), sums.data() + (p.at - first), weights,
                         state, s);
    });
    for (int r = 0; r < comm_->size() && !values.empty(); ++r) {
      if (r != comm_->rank()) copy(blocks.part(r).data(), values.data(), static_cast<index_t>(values.size()));
    }
    return s;
  }

  // Begins what has not begun, in the order of the buckets, and waits for the ends.
  template <class Prepare>
  void exchange_all(message_kind kind, index_t step, const wait_limit& limit, const Prepare& prepare) {
    while (ended_.ok() && done_ < buckets_.size()) {
      if (begun_ < buckets_.size() && static_cast<int>(begun_ - done_) < comm_->most_in_flight()) {
        begin(kind, step, prepare(begun_));
      } else {
        end_one(wait_for_end(*comm_, buckets_[done_].x, limit));
      }
    }
  }
  void begin(message_kind kind, index_t step, const status& fault) {
    bucket& of = buckets_[begun_];
    const bool first = kind == message_kind::slices;
    of.x = {.kind = kind,
            .step = step,
            .fault = fault,
            .to = first ? of.blocks.slices() : of.blocks.parts(),
            .from = first ? of.blocks.parts() : of.blocks.slices()};
    ended_ = comm_->begin(of.x);
    if (!ended_) return comm_->abandon(ended_);  // it has not begun, and the others wait
    ++begun_;
  }
  // Of the oldest exchange in flight. `waited`: where the limit ended it.
  void end_one(const status& waited) {
    const exchange& x = buckets_[done_++].x;
    if (!x.agreed.ok()) {
      if (agreed_.ok()) agreed_ = x.agreed;
    } else {
      ended_ = x.outcome.ok() ? waited : x.outcome;
      if (!ended_) comm_->abandon(ended_);  // also of those in flight
    }
  }
  // What the exchanges of all buckets came to; then those of the next kind may begin.
  status restart() {
    const status s = ended_.ok() ? agreed_ : ended_;
    begun_ = done_ = 0;
    agreed_ = {};
    std::fill(ready_.begin(), ready_.end(), std::size_t{0});
    return s;
  }

  std::span<const dense_tensor> tensors_;
  const dense_layout* layout_;
  Comm* comm_;
  std::pmr::vector<std::size_t> ready_;  // gradients of each bucket
  std::pmr::vector<bucket> buckets_;
  std::size_t begun_ = 0, done_ = 0;  // exchanges of the current kind
  status agreed_;                     // a fault of a rank: the step has ended
  status ended_;                      // the communicator has
  std::pmr::vector<float> state_;     // of the own slices
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
