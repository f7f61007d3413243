// An embedding table that grows: a row for any 64-bit key, from the first time that it is trained, as a row
// source of every verb.
//
//   growing_table<f32_rows> items(64, state_of<adagrad>, row_init::uniform{.seed = 42});
//   items.admit_by(filters::counter{3});                      rows for keys that have come three times
//   items.begin_step(step);
//   auto rows = resolve(pool, items.rows(), bags, combiner::mean, keys::find_or_insert);
//   lookup(pool, rows.value(), out);
//   update(pool, rows.value(), gradient, adagrad{});
//   evict_rows(pool, items, evict::step_ttl{100'000});        eviction.hpp
//
//   keys ──key_index──> codes ──row_store──> rows             finds wait for nobody
//   absent keys ──filter──> rows, in the order of their first position ──> linked        one batch at a time
//
// Rows never move. A row that was erased is used again when no reader can hold it. Not here: files
// (name_rows), tiers.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <span>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/growing/admission.hpp>
#include <deeprec/embedding/growing/detail/admission_filters.hpp>
#include <deeprec/embedding/growing/detail/growing_state.hpp>
#include <deeprec/embedding/growing/detail/row_store.hpp>
#include <deeprec/embedding/growing/growing_options.hpp>
#include <deeprec/embedding/growing/growing_rows.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/support/key_hash.hpp>
#include <deeprec/support/unit_flags.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Owner of rows with keys. All 2^64 keys are keys: numbers of 32 bits are sign-extended, so -1 is one key.
///
/// Invariant: a key has one row or none, and a row one key. The state depends on the calls in their order,
/// not on threads, nor on the seed of the hash, nor on the resource.
/// @threads find of rows() is thread-safe beside everything. insert, erase, evict_rows, begin_step, size and
///          statistics take turns. A step of a row that is erased at the same time is lost. The rest: before
///          it is shared
/// @error   the constructor throws deeprec::error: the status of fault_of, invalid_value for an empty
///          function, and out_of_memory
/// @source  DeepRec's EmbeddingVariable
template <RowFormat Format>
class growing_table {
 public:
  using format_type = Format;

  growing_table(const Format& format, initial_row initialise, const growing_options& options = {},
                const detail::key_seed& seed = detail::process_key_seed())
      : state_(checked(format, options), std::move(initialise), options, seed) {
    if (!state_.initialise)
      status(errc::invalid_value, "growing_table: initialise must not be empty").or_throw();
  }
  /// Rows with the state of an optimizer.
  template <RowOptimizer O>
  growing_table(index_t width, state_of_t<O>, initial_row initialise, const growing_options& options = {})
      : growing_table(Format(width, row_layout{.state_floats = state_floats_of<O>(Format(width).width()),
                                               .state_owner = optimizer_name<O>.data()}),
                      std::move(initialise), options) {}

  /// What is wrong with a format and options; ok where a table can be made of them.
  static status fault_of(const Format& format, const growing_options& options) noexcept {
    if (format.width() < 1)
      return {errc::invalid_value, "growing_table: width must be at least 1", {.value = format.width()}};
    if (options.most_rows < 1)
      return {
          errc::invalid_value, "growing_table: most_rows must be at least 1", {.value = options.most_rows}};
    if (options.memory == nullptr) return {errc::invalid_value, "growing_table: memory must not be null"};
    return detail::row_store::fault_of(format.stride_bytes(), options.granule_bytes);
  }

  /// Admits keys by a filter from now on. Without one every key that is inserted gets a row.
  ///
  /// @pre     no other thread uses the table
  /// @threads exclusive
  /// @error   invalid_value: more occurrences than the filter can count, a share outside (0, 1], fewer keys
  ///          than 1; out_of_memory
  status admit_by(const filters::counter& filter) {
    if (filter.occurrences > filters::counter::most)
      return {errc::invalid_value,
              "admit_by: occurrences of filters::counter must be at most 2^24 - 2",
              {.value = filter.occurrences}};
    return use(nullptr, (std::max)(filter.occurrences, 1U));
  }
  status admit_by(const filters::counting_bloom& filter) {
    if (filter.occurrences > filters::counting_bloom::most)
      return {errc::invalid_value,
              "admit_by: occurrences of filters::counting_bloom must be at most 65535",
              {.value = filter.occurrences}};
    if (filter.keys < 1 || !(filter.false_share > 0 && filter.false_share < 1))
      return {errc::invalid_value,
              "admit_by: filters::counting_bloom must have 1 key at least and a false_share in (0, 1)"};
    return detail::or_out_of_memory("admit_by", [&]() -> status {
      std::pmr::memory_resource* const memory = state_.options.memory;
      if (filter.occurrences <= 255)
        return use(std::make_unique<detail::bloom_filter<std::uint8_t>>(filter, memory));
      return use(std::make_unique<detail::bloom_filter<std::uint16_t>>(filter, memory));
    });
  }
  status admit_by(const filters::probabilistic& filter) {
    if (!(filter.share > 0 && filter.share <= 1))
      return {errc::invalid_value, "admit_by: share of filters::probabilistic must be in (0, 1]"};
    return detail::or_out_of_memory(
        "admit_by", [&]() -> status { return use(std::make_unique<detail::probabilistic_filter>(filter)); });
  }
  /// Null: every key.
  status admit_by(std::unique_ptr<admission_filter> filter) noexcept { return use(std::move(filter)); }
  /// The filter of admit_by; null for filters::counter, which counts in the index, and where there is none.
  [[nodiscard]] admission_filter* filter() const noexcept { return state_.filter.get(); }

  /// The values that absent keys read. Without them an absent key is a fault, or left out, by lookup's bounds
  /// mode.
  ///
  /// @pre     no other thread uses the table
  /// @threads exclusive
  /// @error   shape_mismatch unless there are as many values as the width; out_of_memory
  status default_row(std::span<const float> values) {
    if (const status s = detail::expect_size(static_cast<index_t>(values.size()), state_.format.width(),
                                             "default_row: values must be as many as the width");
        !s) {
      return s;
    }
    return detail::or_out_of_memory("default_row", [&]() -> status {
      if (state_.default_row == nullptr)
        state_.default_row =
            static_cast<std::byte*>(state_.options.memory->allocate(state_.default_bytes(), 64));
      std::memset(state_.default_row, 0, state_.default_bytes());
      state_.format.encode(values.data(), state_.default_row);
      return {};
    });
  }

  /// The row source, to train or to read.
  [[nodiscard]] growing_rows<Format> rows() noexcept { return growing_rows<Format>(state_); }
  [[nodiscard]] growing_rows<Format, const std::byte> rows() const noexcept {
    return growing_rows<Format, const std::byte>(state_);
  }

  /// The step of the births and updates that follow. It never decreases: a smaller one changes nothing. Steps
  /// are counted from the first one, 2^32 of them.
  void begin_step(std::uint64_t step) noexcept {
    const std::lock_guard lock(state_.mutex);
    if (!state_.began) state_.first_step = step;
    state_.began = true;
    if (step < state_.first_step) return;
    const auto since =
        (std::min)(step - state_.first_step, std::uint64_t{(std::numeric_limits<std::uint32_t>::max)()});
    const std::uint32_t before = state_.step.load(std::memory_order_relaxed);
    state_.step.store((std::max)(before, static_cast<std::uint32_t>(since)), std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t step() const noexcept {
    const std::lock_guard lock(state_.mutex);
    return state_.first_step + state_.step.load(std::memory_order_relaxed);
  }

  /// Erases the rows of keys, and what filters::counter counts of them. Others are passed over. Returns how
  /// many rows.
  ///
  /// @cost    a cache line or two a key; scratch of 17 bytes a key from the context's resource
  /// @threads takes turns with insertions and evictions; beside finds
  /// @error   out_of_memory, stopped: nothing was erased
  template <class Context>
  DEEPREC_PER_UNIT result<index_t> erase(Context&& context_or_executor, std::span<const std::uint64_t> keys) {
    const auto ctx = detail::as_context(context_or_executor);
    const detail::host_call call(ctx, "growing_table::erase");
    if (!call) return call.stopped();
    index_t erased = 0;
    const status s = detail::or_out_of_memory("growing_table::erase", [&]() -> status {
      const std::lock_guard lock(state_.mutex);
      erased = state_.erase(ctx, keys.data(), static_cast<index_t>(keys.size()));
      return {};
    });
    if (!s) return s;
    return erased;
  }

  [[nodiscard]] const Format& format() const noexcept { return state_.format; }
  /// The number of rows.
  [[nodiscard]] index_t size() const noexcept { return rows().size(); }
  [[nodiscard]] growing_statistics statistics() const noexcept {
    const std::lock_guard lock(state_.mutex);
    growing_statistics now;
    now.rows = state_.rows.rows();
    now.candidates = state_.index.size() - now.rows;
    now.index_bytes = state_.index.bytes();
    now.row_bytes = state_.rows.bytes() +
                    (state_.default_row == nullptr ? 0 : static_cast<index_t>(state_.default_bytes()));
    now.filter_bytes = state_.filter == nullptr ? 0 : state_.filter->bytes();
    now.waiting_rows = state_.rows.waiting();
    now.pins = state_.readers.pins();
    now.refused = state_.refused;
    now.evicted = state_.evicted;
    now.splits = state_.index.splits();
    return now;
  }

  /// For verbs.
  [[nodiscard]] detail::growing_state<Format>& state() noexcept { return state_; }

 private:
  static const Format& checked(const Format& format, const growing_options& options) {
    fault_of(format, options).or_throw();
    return format;
  }
  status use(std::unique_ptr<admission_filter> filter, std::uint32_t count_to = 1) noexcept {
    state_.filter = std::move(filter);
    state_.count_to = count_to;
    return {};
  }

  mutable detail::growing_state<Format> state_;
};

}}  // namespace deeprec::DEEPREC_ABI
