// A training loop over tables of many ranks under a stale window: rows of later batches are on their way
// while one is computed.
//
//   next ──> resolve ──> lookup ──> compute ──> update      each step has a slot until its update is applied
//   t + 3    t + 2       t + 1      t           t - 1       lookup t sees updates up to t - W of ALL ranks
//
//   auto loop = sharded_loop<rowwise_adagrad, mpi_ranks>::make(std::move(comm), 2).or_throw();
//   loop.add(my_part.view(), combiner::sum, placement::rows{R});
//   loop.run(pool, next, compute, optimizer).or_throw();       all ranks, each with its own batches
//
// A slot is a sharded_group of its own over the same parts, with a duplicate of the communicator. An owner
// gathers the rows of lookup t for all ranks at once, between its updates t - W and t - W + 1: the window of
// each rank alone makes that of all. next() is asked until no rank has a batch. Not here: dense parameters,
// which compute steps (dense_step.hpp).
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <stop_token>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/comm/communicator.hpp>
#include <deeprec/comm/rank_values.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/queue/queue_result.hpp>
#include <deeprec/schedule/stale_loop.hpp>
#include <deeprec/schedule/stale_window.hpp>
#include <deeprec/sharding/detail/loop_faults.hpp>
#include <deeprec/sharding/sharded_group.hpp>
#include <deeprec/sharding/sharded_rows.hpp>
#include <deeprec/sharding/sharded_verbs.hpp>
#include <deeprec/support/growing_block.hpp>
#include <deeprec/support/kept_blocks.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

struct sharded_loop_options {
  /// Of each message; then the run ends, and the loop is of no use.
  std::chrono::nanoseconds patience = std::chrono::minutes(10);
  /// As that of a stale_loop: the number of lookups that are on their way beside the step that computes; at
  /// least W; 0: W.
  index_t requests = 0;
};

/// The tables of a model at one rank, and the order of the steps. Movable. All ranks make it alike, add the
/// same features, and run.
///
/// @threads one call at a time. Several threads communicate at once, each on a communicator of its own: under
///          MPI that needs mpi_calls::at_once
template <class Optimizer, class Comm, BagBatch Bags = jagged_view<>>
class sharded_loop {
 public:
  using group_type = sharded_group<Optimizer, Comm, Bags>;

  /// @param   window  W: 1 is synchronous training
  /// @cost    requests + 2 duplicates of the communicator; all ranks call it
  /// @threads as the communicator
  /// @error   invalid_value: window < 1, or fewer requests than W; as Communicator::duplicate; out_of_memory
  [[nodiscard]] static result<sharded_loop> make(
      Comm comm, index_t window, const sharded_loop_options& options = {},
      std::pmr::memory_resource* memory = std::pmr::get_default_resource()) {
    if (window < 1 || (options.requests != 0 && options.requests < window)) {
      return status(errc::invalid_value, "sharded_loop::make: window must be at least 1, and requests window",
                    {.is = options.requests, .must_be = window});
    }
    return detail::or_out_of_memory([&]() -> result<sharded_loop> {
      sharded_loop made(std::make_unique<parts>(std::move(comm), window, options, memory));
      if (const status s = made.parts_->make_slots(memory); !s) return s.in_operation("sharded_loop::make");
      return made;
    });
  }

  /// Adds a feature to all slots: as sharded_group::add.
  template <RowSource Source, class Pooling, class Placement>
  index_t add(const Source& part, const Pooling& pooling, const Placement& where) {
    index_t feature = -1;
    for (const auto& of : parts_->slots) feature = of->group.add(part, pooling, where);
    return feature;
  }

  /// The number of steps that may have batches at once: requests + 1.
  [[nodiscard]] index_t slots() const noexcept { return parts_->loop.slots(); }
  /// The group of a slot: its features, columns and traffic.
  [[nodiscard]] const group_type& group(index_t slot = 0) const noexcept {
    return parts_->slots[static_cast<std::size_t>(slot)]->group;
  }
  /// Updates of the last run: the same number at all ranks, where no message failed.
  [[nodiscard]] index_t updates() const noexcept { return parts_->updates; }
  /// Of the last run. Its steps count those whose update was left out since there was a fault.
  [[nodiscard]] const stale_report& report() const noexcept { return parts_->loop.report(); }

  /// Trains until the data of all ranks have ended; all ranks call it.
  ///
  /// @param next     next(step) makes the batch of a step: std::optional<std::span<const Bags>>, or a result
  ///                 of it. None: the data of this rank have ended, and it goes on with batches without
  ///                 bags. The batch stays until its update, and belongs to step.slot. In order
  /// @param compute  compute(step, pooled, gradient) writes the gradient of the pooled rows: matrices (B,
  ///                 total width), B the bags of this rank's first feature, 0 behind the end of its data.
  ///                 Nothing, or a status. In order, on the caller's thread
  /// @param optimizer  of the rows; next_step(optimizer) after each update
  /// @param mode     keys::find, or keys::find_or_insert: keys are inserted in the order of steps
  /// @param stop     of this rank: all ranks end with `stopped`
  /// @pre     the executor runs at least slots() tasks at once; no part calls run(). Where compute has
  ///          messages of its own, as of a dense_step, it fails at all ranks or at none
  /// @post    all threads have left. Another run may follow, unless a message failed
  /// @numerics the same bits for any timing, requests and threads: those of one process that looks up batch t
  ///          of all ranks in the tables that updates up to t - W have made. W = 1: those of the verbs one
  ///          after the other
  /// @cost    as stale_loop::run; four messages a step to each other rank: those of the verbs, and one of 80
  ///          bytes that says whether steps go on. Buffers, and scratch memory of the verbs, grow to the
  ///          largest batch and are kept: then a step allocates nothing
  /// @threads one at a time
  /// @error   at all ranks the same: the fault of the smallest rank that has one of its own (of next, compute
  ///          and stop), else the fault of the first step whose verb failed. Steps before it are whole, and
  ///          it and later ones are not applied. Where a message failed (timed_out, closed, io_error) or a
  ///          part throws, all communicators are abandoned, and the other ranks get `closed`
  /// @example @snippet tests/sharding/sharded_loop_test.cpp sharded_loop
  template <class Executor, class Next, class Compute, class Mode = keys::find_t>
  [[nodiscard]] status run(Executor& executor, Next&& next, Compute&& compute, Optimizer& optimizer,
                           Mode mode = {}, const std::stop_token& stop = {}) {
    parts& all = *parts_;
    all.faults.restart();
    bool has_data = true;
    all.updates = 0;
    abandoning unless_orderly(&all);
    const status ran = all.loop.run(
        executor, [&](stale_step step) { return all.begin(step, next, mode, stop, has_data); },
        [&](stale_step step) { return all.look_up(step); },
        [&](stale_step step) { all.compute(step, compute); },
        [&](stale_step step) { return all.apply(step, optimizer); });
    const status end = ran.ok() ? all.agree_on_end() : ran;
    if (ran.ok() && (end.ok() || all.agreement.is_agreed())) unless_orderly.of = nullptr;
    const status of_verb = all.faults.of_verb();
    return (end.ok() || (!ran.ok() && !of_verb.ok()) ? of_verb : end).in_operation("sharded_loop::run");
  }

 private:
  struct slot_parts {
    slot_parts(Comm comm, const sharded_options& options, std::pmr::memory_resource* memory)
        : scratch(memory),
          group(std::move(comm), options, memory),
          bags(memory),
          pooled(memory),
          gradient(memory) {}

    /// Of the verbs of this slot, of which one is called at a time.
    [[nodiscard]] context<inline_executor> here() noexcept {
      context ctx(executor);
      ctx.memory = &scratch;
      return ctx;
    }
    [[nodiscard]] index_t rows() const noexcept { return bags.empty() ? 0 : bags.front().bags(); }
    [[nodiscard]] matrix_view<float> matrix(const detail::growing_block& of) const noexcept {
      return {reinterpret_cast<float*>(of.data()), rows(), group.total_width()};
    }

    detail::kept_blocks scratch;
    inline_executor executor;
    group_type group;
    std::pmr::vector<Bags> bags;
    detail::growing_block pooled, gradient;
    std::optional<sharded_rows<group_type>> located;
  };
  /// What a rank sends before each step.
  struct going_on {
    int has_batch, knows_fault;
  };

  struct parts {
    parts(Comm of, index_t window, const sharded_loop_options& given, std::pmr::memory_resource* memory)
        : comm(std::move(of)),
          options(given),
          versions(window, 1, staleness::exact_t{}, memory),
          loop(versions, given.requests, memory),
          agreement(comm.size(), memory) {}

    status make_slots(std::pmr::memory_resource* memory) {
      for (index_t k = 0; k < loop.slots(); ++k) {
        auto own = comm.duplicate();
        if (!own) return own.fault();
        slots.push_back(std::make_unique<slot_parts>(std::move(own).value(),
                                                     sharded_options{.patience = options.patience}, memory));
      }
      return {};
    }
    slot_parts& at(stale_step step) noexcept { return *slots[static_cast<std::size_t>(step.slot)]; }

    // Makes the batch of a step, and sends its ids. False: no rank goes on.
    template <class Next, class Mode>
    result<bool> begin(stale_step step, Next& next, Mode mode, const std::stop_token& stop, bool& has_data) {
      slot_parts& of = at(step);
      if (stop.stop_requested()) faults.note_own({errc::stopped, "sharded_loop::run: stopped at a rank"});
      of.bags.clear();
      bool has_batch = false;
      if (has_data && faults.own().ok() && faults.of_verb().ok()) {
        const status made = detail::or_out_of_memory("sharded_loop::run", [&] {
          const result<std::optional<std::span<const Bags>>> batch = next(step);
          if (!batch) return static_cast<status>(batch.fault());
          if (!batch.value()) return status();
          of.bags.assign(batch.value()->begin(), batch.value()->end());
          const index_t bytes = of.rows() * of.group.total_width() * index_t{sizeof(float)};
          of.pooled.make(bytes);
          of.gradient.make(bytes);
          has_batch = true;
          return status();
        });
        has_data = has_batch;
        if (!made) {
          faults.note_own(made);
          of.bags.clear();
        }
      }
      if (!has_batch) {
        const status made = detail::or_out_of_memory("sharded_loop::run", [&] {
          of.bags.assign(static_cast<std::size_t>(of.group.features()), Bags(&zero_offset, 0, &no_id, 0));
          return status();
        });
        if (!made) faults.note_own(made);
      }
      const going_on mine{has_batch ? 1 : 0, faults.of_verb().ok() ? 0 : 1};
      if (const status s = agreement.begin(comm, step.number, mine, faults.own()); !s) return s;
      of.located.reset();
      auto located = resolve(of.here(), of.group, of.bags, mode);
      const status resolved = located.ok() ? status() : status(located.fault());
      if (detail::ends_ranks(resolved)) return resolved;
      if (located.ok()) of.located.emplace(std::move(located).value());
      if (!resolved) faults.note_verb(detail::loop_verb::resolve, step.number, resolved);
      const status agreed = agreement.end(comm, within(options.patience));
      if (!agreed && !agreement.is_agreed()) return agreed;
      if (!resolved || !agreed) return false;
      int batches = 0, known = 0;
      for (int r = 0; r < comm.size(); ++r) {
        batches += agreement.of(r).has_batch;
        known += agreement.of(r).knows_fault;
      }
      return batches > 0 && known == 0;
    }

    status look_up(stale_step step) {
      slot_parts& of = at(step);
      const auto reading = versions.read(step.number);
      if (!reading) return reading.outcome();
      return note(detail::loop_verb::lookup, step, lookup(of.here(), *of.located, of.matrix(of.pooled)));
    }

    template <class Compute>
    void compute(stale_step step, Compute& by) {
      if (!faults.computes(step.number)) return;
      slot_parts& of = at(step);
      const matrix_view<const float> pooled = of.matrix(of.pooled);
      const matrix_view<float> gradient = of.matrix(of.gradient);
      if constexpr (std::is_void_v<std::invoke_result_t<Compute&, stale_step, matrix_view<const float>,
                                                        matrix_view<float>>>) {
        by(step, pooled, gradient);
      } else {
        const status s = by(step, pooled, gradient);
        if (!s) faults.note_compute(step.number, s);
      }
    }

    status apply(stale_step step, Optimizer& optimizer) {
      slot_parts& of = at(step);
      const auto writing = versions.apply(step.number);
      if (!writing) return writing.outcome();
      if (!faults.updates(step.number)) return {};
      matrix_view<const float> gradient = of.matrix(of.gradient);
      // A gradient of no shape is a fault of all ranks; its words go with the agreement.
      if (!faults.has_computed(step.number)) gradient = {nullptr, 0, of.group.total_width() + 1};
      const status s = update(of.here(), *of.located, gradient, optimizer);
      if (s.ok()) {
        ++updates;
        next_step(optimizer);
      }
      return note(detail::loop_verb::update, step, s);
    }

    // Faults that came when no step followed.
    status agree_on_end() {
      return agreement.trade(comm, loop.report().steps, {}, faults.own(), within(options.patience));
    }

    status note(detail::loop_verb verb, stale_step step, const status& s) {
      if (s.ok() || detail::ends_ranks(s)) return s;
      faults.note_verb(verb, step.number, s);
      return {};
    }

    Comm comm;
    sharded_loop_options options;
    stale_window<> versions;
    stale_loop<stale_window<>> loop;
    rank_values<going_on> agreement;
    std::vector<std::unique_ptr<slot_parts>> slots;  // rows refer to the groups
    detail::loop_faults faults;
    index_t updates = 0;
    typename Bags::offset_type zero_offset = 0;
    typename Bags::id_type no_id = 0;
  };

  // A run that ends out of order ends the ranks.
  struct abandoning {
    explicit abandoning(parts* all) noexcept : of(all) {}
    abandoning(const abandoning&) = delete;
    abandoning& operator=(const abandoning&) = delete;
    ~abandoning() {
      if (of == nullptr) return;
      const status why(errc::cancelled, "sharded_loop::run: the run of this rank has ended");
      of->comm.abandon(why);
      for (const auto& s : of->slots) s->group.abandon(why);
    }
    parts* of;
  };

  explicit sharded_loop(std::unique_ptr<parts> of) noexcept : parts_(std::move(of)) {}

  std::unique_ptr<parts> parts_;
};

}}  // namespace deeprec::DEEPREC_ABI
