// Rows for the keys of a batch that a growing table does not hold.
//
//   number     the keys that differ, in the order of their first position, and how often each comes
//   reserve    entries of the index and rows: from here on nothing fails
//   admit      by the filter, and by the room that is left
//   fill       rows and facts of those that were admitted, in parallel
//   link       their codes, in parallel by shards
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/growing/detail/distinct_keys.hpp>
#include <deeprec/embedding/growing/detail/growing_state.hpp>
#include <deeprec/embedding/growing/detail/victims.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/key_hash.hpp>
#include <deeprec/support/number_keys.hpp>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// One insertion. Under the mutex of the table.
template <class Context, RowFormat Format>
class insertion {
 public:
  insertion(const Context& ctx, growing_state<Format>& state, index_t positions)
      : ctx_(ctx),
        state_(state),
        scratch_(ctx.memory, bytes_for(ctx, state, positions)),
        keys_(scratch_.take<std::uint64_t>(positions)),
        distinct_(scratch_.take<std::uint64_t>(positions)),
        occurrences_(scratch_.take<std::uint32_t>(positions)),
        found_(scratch_.take<std::uint32_t>(positions)),
        number_of_(scratch_.take<std::uint32_t>(positions)),
        codes_(scratch_.take<std::uint32_t>(positions)),
        place_(scratch_.take<std::uint32_t>(positions)),
        admitted_(scratch_.take<unsigned char>(positions)),
        table_(scratch_.take<std::uint32_t>(static_cast<index_t>(key_entries(positions)))),
        values_(scratch_.take<float>(floats_of_worker(state) * workers(ctx))) {}

  /// Admits by the filter, or, for rows that were admitted before they came, every key.
  template <class Id>
  status run(const Id* ids, bool asks_filter) {
    state_.rows.reclaim(state_.readers);
    number(ids);
    state_.index.find(ctx_.instruction_set, distinct_.data(), count_, found_.data());
    keep_absent();
    if (absent_ == 0) return {};
    const bool filters = asks_filter && state_.filter != nullptr;
    const bool counts = asks_filter && state_.filter == nullptr && state_.count_to > 1;
    const index_t entries = filters || counts ? absent_ : (std::min)(absent_, most_born());
    const auto places = state_.index.reserve(ctx_, distinct_.data(), codes_.data(), entries);
    if (!places) return places.fault();
    const index_t wanted = counts ? count_candidates() : absent_;
    if (const status s = make_room(wanted); !s) return s;
    if (filters) {
      state_.filter->admit(distinct_.first(at(absent_)), occurrences_.first(at(absent_)), now(),
                           admitted_.first(at(absent_)));
    } else if (!counts) {
      std::fill_n(admitted_.begin(), absent_, static_cast<unsigned char>(1));
    }
    take_rows(counts);
    fill();
    state_.index.put(ctx_, places.value(), codes_.data());
    state_.rows.trim();
    return {};
  }
  /// The rows of all positions after run(); null for keys that got none.
  void write_addresses(const std::byte** addresses) noexcept {
    for (index_t k = 0; k < absent_; ++k) found_[place_[at(k)]] = codes_[at(k)];
    for (std::size_t k = 0; k < keys_.size(); ++k) {
      const std::uint32_t code = found_[number_of_[k]];
      addresses[k] = is_row_code(code) ? state_.rows.address(code - 1) : nullptr;
    }
  }

 private:
  static std::size_t at(index_t i) noexcept { return static_cast<std::size_t>(i); }
  static index_t workers(const Context& ctx) { return static_cast<index_t>(ctx.executor->concurrency()); }
  static index_t floats_of_worker(const growing_state<Format>& state) noexcept {
    return capped_round_up(state.format.width(), 16);  // workers share no cache line
  }
  static index_t bytes_for(const Context& ctx, const growing_state<Format>& state, index_t n) {
    if (n > most_keys) refuse_memory();
    index_t bytes = 0;
    for (const index_t part :
         {scratch_block::bytes_of<std::uint64_t>(n), scratch_block::bytes_of<std::uint64_t>(n),
          scratch_block::bytes_of<std::uint32_t>(n), scratch_block::bytes_of<std::uint32_t>(n),
          scratch_block::bytes_of<std::uint32_t>(n), scratch_block::bytes_of<std::uint32_t>(n),
          scratch_block::bytes_of<std::uint32_t>(n), scratch_block::bytes_of<unsigned char>(n),
          scratch_block::bytes_of<std::uint32_t>(static_cast<index_t>(key_entries(n))),
          scratch_block::bytes_of<float>(capped_product(floats_of_worker(state), workers(ctx)))}) {
      bytes = capped_sum(bytes, part);
    }
    return bytes;
  }

  [[nodiscard]] std::uint64_t now() const noexcept {
    return state_.first_step + state_.step.load(std::memory_order_relaxed);
  }
  template <class Id>
  void number(const Id* ids) {
    const auto positions = static_cast<index_t>(keys_.size());
    for (index_t k = 0; k < positions; ++k) keys_[at(k)] = key_of(ids[k]);
    std::fill(table_.begin(), table_.end(), 0U);
    distinct_keys keys{process_key_seed(), keys_.data(), distinct_.data(), occurrences_.data()};
    number_keys(table_, positions, keys, number_of_.data());
    count_ = keys.known;
  }
  // Moves the keys without rows to the front, in their order.
  void keep_absent() noexcept {
    absent_ = 0;
    for (index_t k = 0; k < count_; ++k) {
      if (is_row_code(found_[at(k)])) continue;
      distinct_[at(absent_)] = distinct_[at(k)];
      occurrences_[at(absent_)] = occurrences_[at(k)];
      codes_[at(absent_)] = found_[at(k)];
      place_[at(absent_++)] = static_cast<std::uint32_t>(k);
    }
  }
  // filters::counter: which keys have come often enough, and what the others' codes will be.
  index_t count_candidates() noexcept {
    index_t ripe = 0;
    for (index_t k = 0; k < absent_; ++k) {
      const std::uint32_t before = is_candidate_code(codes_[at(k)]) ? codes_[at(k)] - first_candidate : 0;
      const std::uint32_t came = (std::min)(occurrences_[at(k)], filters::counter::most - before) + before;
      admitted_[at(k)] = came >= state_.count_to ? 1 : 0;
      codes_[at(k)] = first_candidate + came;
      ripe += admitted_[at(k)];
    }
    return ripe;
  }
  [[nodiscard]] bool evicts() const noexcept { return state_.options.full != when_full::refuse; }
  // Keys that can get rows, at most: the first ones.
  [[nodiscard]] index_t most_born() const noexcept {
    const index_t most = state_.options.most_rows;
    return evicts() ? most : (std::max)(most - state_.rows.rows(), index_t{0});
  }
  // Rows for `wanted` keys, as far as the table may hold them. Others are erased for them where the options
  // ask for that: last, since it can't be undone; none of this step, and none that is held.
  status make_room(index_t wanted) {
    growing_state<Format>& s = state_;
    const index_t most = s.options.most_rows;
    if (!s.rows.reserve((std::min)(wanted, most_born())))
      return {errc::out_of_memory, "growing_table: rows must be fewer than their 32-bit numbers"};
    const index_t over = s.rows.rows() + wanted - most;
    if (over > 0 && evicts()) {
      // A sweep reads all facts: it makes room for later batches too.
      const index_t victims = (std::min)((std::max)(over, most / 32), s.rows.rows());
      const std::uint32_t step = s.step.load(std::memory_order_relaxed);
      const auto may = [&](const swept_row& row) { return row.step < step && !row.held; };
      const kept_rows kept(*this);
      if (s.options.full == when_full::evict_least_recent) {
        evict_first<by_step>(victims, may);
      } else {
        evict_first<by_frequency>(victims, may);
      }
    }
    room_ = (std::max)(most - s.rows.rows(), index_t{0});
    return {};
  }
  // While it exists, rows of this batch, and of others that insert next, are seen as held by a sweep.
  class kept_rows {
   public:
    explicit kept_rows(const insertion& batch) noexcept : batch_(batch) {
      mark([](auto& rest) { rest.fetch_or(row_facts::held, std::memory_order_relaxed); });
    }
    kept_rows(const kept_rows&) = delete;
    kept_rows& operator=(const kept_rows&) = delete;
    ~kept_rows() {
      mark([](auto& rest) { rest.fetch_and(~row_facts::held, std::memory_order_relaxed); });
    }

   private:
    template <class F>
    void mark(const F& f) const noexcept {
      const row_store& rows = batch_.state_.rows;
      batch_.state_.held.for_each([&](const std::byte* row) { f(rows.facts_of(row).rest); });
      for (const std::uint32_t code : batch_.found_.first(at(batch_.count_)))
        if (is_row_code(code)) f(rows.facts(code - 1).rest);
    }
    const insertion& batch_;
  };
  template <class Order, class May>
  void evict_first(index_t victims, const May& may) {
    const auto bound = bound_of_first<Order>(ctx_, state_.rows, victims, may);
    if (bound.none) return;
    erase_victims(ctx_, state_, 1.0, [&](const swept_row& row, int) { return may(row) && bound.holds(row); });
  }
  // Codes of admitted keys, while there is room; the others keep theirs, or none.
  void take_rows(bool counts) noexcept {
    for (index_t k = 0; k < absent_; ++k) {
      std::uint32_t& code = codes_[at(k)];
      if (admitted_[at(k)] != 0 && room_ > 0) {
        code = state_.rows.take() + 1;
        if (state_.changes != nullptr) state_.changes->born(code - 1);
        --room_;
        continue;
      }
      state_.refused += admitted_[at(k)] != 0 ? 1 : 0;
      admitted_[at(k)] = 0;
      if (!counts && !is_candidate_code(code)) code = key_index::none;
    }
  }
  void fill() {
    const growing_state<Format>& s = state_;
    const index_t width = s.format.width();
    const auto stride = static_cast<std::size_t>(s.format.stride_bytes());
    const std::uint32_t step = s.step.load(std::memory_order_relaxed), flags = s.birth_flags();
    const double ns = static_cast<double>(absent_) * (50.0 + 2.0 * static_cast<double>(width));
    run_bulk(ctx_, {absent_, 64, ns}, [&](index_t begin, index_t end, int worker) {
      float* const values = values_.data() + worker * floats_of_worker(s);
      for (index_t k = begin; k < end; ++k) {
        if (admitted_[at(k)] == 0) continue;
        const std::uint32_t number = codes_[at(k)] - 1;
        std::byte* const row = s.rows.address(number);
        std::memset(row, 0, stride);
        s.initialise(static_cast<index_t>(distinct_[at(k)]), values, width);
        s.format.encode(values, row);
        row_facts& facts = s.rows.facts(number);
        facts.key.store(distinct_[at(k)], std::memory_order_relaxed);
        facts.step.store(step, std::memory_order_relaxed);
        facts.rest.store(flags, std::memory_order_relaxed);
      }
    });
  }

  const Context& ctx_;
  growing_state<Format>& state_;
  scratch_block scratch_;
  std::span<std::uint64_t> keys_;         // of positions
  std::span<std::uint64_t> distinct_;     // first all, then those without rows
  std::span<std::uint32_t> occurrences_;  // of distinct_
  std::span<std::uint32_t> found_;        // the codes of all keys
  std::span<std::uint32_t> number_of_;    // of a position: its key among all
  std::span<std::uint32_t> codes_;        // of the keys without rows
  std::span<std::uint32_t> place_;        // where those are among all
  std::span<unsigned char> admitted_;
  std::span<std::uint32_t> table_;
  std::span<float> values_;
  index_t count_ = 0;
  index_t absent_ = 0;
  index_t room_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
