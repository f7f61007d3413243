// Dense parameters that all ranks have: their gradients are summed over the ranks, and they are stepped.
//
//   auto dense = dense_step<adagrad, mpi_ranks>::make(std::move(comm), tensors).or_throw();
//   for each batch:
//     backward of the last layer;  dense.ready(last);       a bucket leaves when all of its gradients are
//     backward of the one before;  dense.ready(last - 1);   ready
//     dense.step(ctx, optimizer);                           the rest; parameters are those of the next batch
//
//   sums::in_order    slices of buckets are added in the order of the ranks, stepped by one rank each, and
//                     gathered: state of the optimizer exists once among all ranks
//   sums::by_engine   the engine's own sum of each bucket, and a step of all parameters at each rank
//
// Not here: tables (sharded_group.hpp), and scaling: gradients are those of the mean over all ranks' batches
// where each rank's are scaled by its part of the samples.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/comm/communicator.hpp>
#include <deeprec/comm/measure_link.hpp>
#include <deeprec/comm/rank_values.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/queue/queue_result.hpp>
#include <deeprec/sharding/dense_tensor.hpp>
#include <deeprec/sharding/detail/dense_layout.hpp>
#include <deeprec/sharding/detail/dense_pieces.hpp>
#include <deeprec/sharding/detail/engine_dense.hpp>
#include <deeprec/sharding/detail/ordered_dense.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Who adds the gradients of the ranks.
namespace sums {
/// In the order of the ranks: the bits of one process that adds them so, for any timing and bucket size.
struct in_order_t {};
inline constexpr in_order_t in_order{};
/// The engine: as Communicator::sum.
struct by_engine_t {};
inline constexpr by_engine_t by_engine{};
}  // namespace sums

struct dense_options {
  /// Of each message, and of making the step; then the communicator has ended.
  std::chrono::nanoseconds patience = std::chrono::minutes(10);
  /// A bucket closes when it has as many. 0: what the ranks' link takes ten latencies for, as measured by
  /// make(): then a tenth of the time is latency. The same at all ranks.
  index_t bucket_bytes = 0;
};

/// The dense parameters of a model at one rank. Movable.
///
/// @threads one call at a time
template <class Optimizer, class Comm, class Sums = sums::in_order_t>
class dense_step {
  static_assert(Communicator<Comm>,
                "deeprec::dense_step: not a communicator. Fix: dense_step<Optimizer, mpi_ranks>, or a class "
                "with the members that deeprec/comm/communicator.hpp names.");
  static_assert(
      RowOptimizer<Optimizer>,
      "deeprec::dense_step: not an optimizer. Fix: one of deeprec/optim/optimizers.hpp, or a functor "
      "as row_optimizer.hpp describes.");
  static constexpr bool in_order = std::is_same_v<Sums, sums::in_order_t>;
  static_assert(in_order || std::is_same_v<Sums, sums::by_engine_t>,
                "deeprec::dense_step: no way of summing. Fix: sums::in_order_t or sums::by_engine_t.");

 public:
  /// Agrees with the other ranks on the tensors and on the buckets, and makes blocks and the optimizer's
  /// state; all ranks call it.
  ///
  /// @param   tensors  in the order in which the model uses them, so that their gradients are ready in the
  ///                   reverse order; the list is copied, the memory is the caller's
  /// @param   memory   of blocks and state
  /// @cost    two exchanges, and those of measure_link; 8 bytes for a parameter, and the state: 1 / n of it
  ///          with sums::in_order
  /// @threads as the communicator
  /// @error   at all ranks that of the smallest rank: shape_mismatch, with the number of the tensor, for a
  ///          gradient of another shape or rows that do not follow each other; invalid_value where ranks have
  ///          other tensors or options; out_of_memory (before anything is sent at that rank alone: the others
  ///          time out); as complete()
  [[nodiscard]] static result<dense_step> make(
      Comm comm, std::span<const dense_tensor> tensors, const dense_options& options = {},
      std::pmr::memory_resource* memory = std::pmr::get_default_resource()) {
    return detail::or_out_of_memory([&]() -> result<dense_step> {
      dense_step made(std::make_unique<parts>(std::move(comm), tensors, options, memory));
      if (const status s = made.parts_->agree(); !s) return s.in_operation("dense_step::make");
      return made;
    });
  }

  [[nodiscard]] int rank() const noexcept { return parts_->comm.rank(); }
  /// n, the number of ranks.
  [[nodiscard]] int size() const noexcept { return parts_->comm.size(); }
  /// Messages of a step to each other rank are two for each, or with sums::by_engine the engine's.
  [[nodiscard]] index_t buckets() const noexcept { return static_cast<index_t>(parts_->layout->buckets()); }
  /// Of the optimizer, at this rank.
  [[nodiscard]] index_t state_floats() const noexcept { return parts_->work->state_floats(); }
  /// Ends the steps of all ranks, where the engine can tell them.
  void abandon(const status& why) { parts_->comm.abandon(why); }

  /// The gradient of a tensor is complete, and is not changed until step() has returned.
  ///
  /// @cost    copies it to its bucket; begins the exchange where it was the bucket's last one, and polls
  /// @threads as the step
  /// @error   invalid_value: there is no such tensor, or it was ready before; nothing has changed
  [[nodiscard]] status ready(index_t tensor) {
    std::pmr::vector<unsigned char>& marks = parts_->ready;
    if (tensor < 0 || tensor >= static_cast<index_t>(marks.size()) ||
        marks[static_cast<std::size_t>(tensor)] != 0)
      return {errc::invalid_value,
              "dense_step::ready: a gradient must be that of a tensor, and ready once a step",
              {.item = tensor}};
    take(static_cast<std::size_t>(tensor));
    poll();
    return {};
  }
  /// Lets messages move that are on their way.
  ///
  /// @cost    that of Communicator::poll for each
  /// @threads as the step
  /// @error   none; the step returns it
  void poll() { parts_->work->poll(parts_->number); }

  /// Sums the gradients of all ranks and steps the parameters; those that are not ready yet are now. All
  /// ranks call it, each with the same optimizer.
  ///
  /// @param    fault  of this rank: the others get it, and nobody steps
  /// @post     parameters have the same bits at all ranks, where they had before
  /// @numerics apply_rows on sums in float. sums::in_order: rank after rank, the bits of one process for any
  ///           timing; by_engine: the engine's order
  /// @cost     8 (n - 1) / n bytes are sent for a parameter. sums::in_order: O(parameters / n) of the
  ///           optimizer. Allocates nothing
  /// @threads  as the step; every rank calls it
  /// @error    `fault` of the smallest rank that has one, at all ranks; stopped by the context; timed_out
  ///           with a silent rank; closed, and others of complete(). No parameter is written at any rank;
  ///           after all but the first two the communicator has ended, and state of the optimizer is of no
  ///           use. With sums::by_engine a rank that is lost between the engine's last sum and its end may
  ///           leave others stepped
  /// @example  @snippet tests/sharding/dense_step_test.cpp dense_step
  template <class Context>
  DEEPREC_PER_UNIT status step(Context&& context_or_executor, const Optimizer& optimizer,
                               const status& fault = {}) {
    const auto ctx = detail::as_context(context_or_executor);
    const detail::host_call call(ctx, "dense_step");
    parts& of = *parts_;
    const status own = fault.ok() && !call ? call.stopped() : fault;
    for (std::size_t t = 0; t < of.ready.size(); ++t) {
      if (of.ready[t] == 0) take(t);
    }
    const status s =
        of.work->run(detail::begun(ctx), optimizer, of.number++, own, within(of.options.patience));
    std::fill(of.ready.begin(), of.ready.end(), static_cast<unsigned char>(0));
    return s.in_operation("dense_step");
  }

 private:
  using work_type = std::conditional_t<in_order, detail::ordered_dense<Optimizer, Comm>,
                                       detail::engine_dense<Optimizer, Comm>>;

  struct parts {
    parts(Comm of, std::span<const dense_tensor> list, const dense_options& given,
          std::pmr::memory_resource* from)
        : comm(std::move(of)),
          options(given),
          memory(from),
          tensors(list.begin(), list.end(), from),
          ready(list.size(), from),
          models(comm.size(), from) {}
    ~parts() {
      if (work != nullptr && work->in_flight())
        comm.abandon({errc::cancelled, "dense_step: a step must end"});
    }

    status agree() {
      const wait_limit limit = within(options.patience);
      if (const status s = models.trade(comm, 0, hash(), check(), limit); !s) return s;
      for (int r = 1; r < comm.size(); ++r) {
        if (models.of(r) == models.of(0)) continue;
        fault_place place{};
        place.rank = r;
        return {errc::invalid_value, "dense_step::make: all ranks must have the same tensors and options",
                place};
      }
      if (options.bucket_bytes == 0 && comm.size() > 1) {
        const auto link = measure_link(comm, limit, memory);
        if (!link) return link.fault();
        options.bucket_bytes = link.value().bytes_in(10);
      }
      const status made = detail::or_out_of_memory([&] {
        std::pmr::vector<detail::dense_shape> shapes(memory);
        for (const dense_tensor& t : tensors)
          shapes.push_back({t.parameters.extent(0), t.parameters.extent(1)});
        layout = std::make_unique<detail::dense_layout>(shapes, comm.size(), options.bucket_bytes,
                                                        detail::cuts_of<Optimizer>, memory);
        work = std::make_unique<work_type>(tensors, *layout, comm, memory);
        return status();
      });
      return models.trade(comm, 1, 0, made, limit);
    }
    [[nodiscard]] status check() const {
      if (options.bucket_bytes < 0)
        return {errc::invalid_value,
                "dense_step::make: bucket_bytes must not be negative",
                {.is = options.bucket_bytes}};
      index_t floats = 0;
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        const auto& [p, g] = tensors[t];
        const fault_place place{.value = static_cast<std::int64_t>(t)};
        if (p.extent(0) != g.extent(0) || p.extent(1) != g.extent(1))
          return {errc::shape_mismatch, "dense_step::make: a gradient must have the shape of its parameters",
                  place};
        if (!p.validate() || !g.validate() || !is_dense(p) || !is_dense(g))
          return {errc::shape_mismatch, "dense_step::make: rows of a tensor must follow each other in memory",
                  place};
        floats = capped_sum(floats, capped_product(p.extent(0), p.extent(1)));
      }
      // Two blocks and the state.
      if (!fits_memory(floats, sizeof(float) * static_cast<std::size_t>(4 + Optimizer::element_state)))
        return {errc::out_of_memory, "dense_step::make: the tensors must fit memory"};
      return {};
    }
    template <class T>
    static bool is_dense(const matrix_view<T>& m) {
      return m.empty() || m.extent(0) == 1 || m.stride(0) == m.extent(1);
    }
    [[nodiscard]] std::uint64_t hash() const {
      std::uint64_t h = mix64(static_cast<std::uint64_t>(options.bucket_bytes));
      for (const dense_tensor& t : tensors) {
        for (int i = 0; i < 2; ++i) h = mix64(h ^ mix64(static_cast<std::uint64_t>(t.parameters.extent(i))));
      }
      return h;
    }

    Comm comm;
    dense_options options;
    std::pmr::memory_resource* memory;
    std::pmr::vector<dense_tensor> tensors;
    std::pmr::vector<unsigned char> ready;  // by tensors
    rank_values<std::uint64_t> models;
    std::unique_ptr<detail::dense_layout> layout;
    std::unique_ptr<work_type> work;
    index_t number = 0;
  };

  explicit dense_step(std::unique_ptr<parts> of) noexcept : parts_(std::move(of)) {}
  void take(std::size_t tensor) noexcept {
    parts_->ready[tensor] = 1;
    parts_->work->take(tensor);
  }

  std::unique_ptr<parts> parts_;  // exchanges in flight refer to it
};

}}  // namespace deeprec::DEEPREC_ABI
