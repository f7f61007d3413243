// What changed in the rows of a growing table since its last cuts, and the rows of a cut that is being
// written.
//
//   cut        one moment between two steps. It has all rows (whole), or those touched since the cut before
//   interval   from one cut to the next: numbers of rows that were touched, keys that were erased
//   copies     rows of the cut that something changed before the saving thread came to them
//
// Everything that changes a row comes here first: update and load by before_write, insertions by born,
// erasures and evictions by before_erase and retired. The saving thread walks numbers of rows, never the
// index.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <mutex>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/growing/detail/byte_list.hpp>
#include <deeprec/embedding/growing/detail/row_claim.hpp>
#include <deeprec/embedding/growing/detail/row_record.hpp>
#include <deeprec/embedding/growing/detail/row_store.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// @threads before_write: thread-safe, by one updater at a time and its workers. What is "under the mutex" is
///          under that of the table. write: one thread, beside all of them
class row_changes {
  using claim = row_claim<std_atomics, row_facts::copying>;
  static constexpr index_t batch = 128;
  static constexpr index_t ahead = 8;

 public:
  /// @param memory      of logs and copies; thread-safe
  /// @param copy_budget bytes of copies, beyond which writers wait for the saving thread
  row_changes(row_store& rows, const row_record& record, std::pmr::memory_resource* memory,
              index_t copy_budget)
      : rows_(&rows),
        record_(record),
        budget_(static_cast<std::size_t>(copy_budget)),
        drained_from_(std::clamp(budget_ / 2, std::size_t{1}, std::size_t{1} << 18)),
        memory_(memory),
        intervals_{interval(memory), interval(memory)},
        copies_(memory),
        drained_(memory) {}

  /// The table ends before its folder does.
  void detach() noexcept { rows_ = nullptr; }
  [[nodiscard]] bool is_attached() const noexcept { return rows_ != nullptr; }

  // --- before rows change -------------------------------------------------------------------------------

  /// Rows of an update, or of a load: copied where the cut has them, and touched.
  void before_write(const std::byte* const* rows, index_t n) noexcept {
    for (index_t i = 0; i < n; i += batch) {
      const index_t some = (std::min)(batch, n - i);
      preserve(rows + i, some);
      touch(rows + i, some);
    }
  }
  /// A row that is going to be erased. Under the mutex.
  void before_erase(const std::byte* row) noexcept { preserve(&row, 1); }
  /// A row that had these flags until now, and its key. Under the mutex.
  ///
  /// @param key_stays it has another row
  void retired(std::uint64_t key, std::uint32_t flags, bool key_stays) noexcept {
    const std::lock_guard lock(mutex_);
    if (!key_stays) append(now().erased, std::span(&key, 1));
    if ((flags & touched_now()) != 0) --now().live;
  }
  void born(std::uint32_t number) noexcept { log(std::span(&number, 1)); }
  /// The flags of a row that is born.
  [[nodiscard]] std::uint32_t birth_flags() const noexcept {
    return row_facts::live | saved_now_ | touched_now();
  }

  // --- cuts ---------------------------------------------------------------------------------------------

  /// Whether what was touched is not known: the next cut has to be whole.
  [[nodiscard]] bool is_lost() const noexcept { return intervals_[parity_].lost; }
  /// Forgets all changes: the table is as some file has it. No thread changes rows. Under the mutex.
  void forget(bool is_in_a_file) noexcept {
    for (index_t g = 0; g < rows_->granule_count(); ++g) {
      const auto all = rows_->facts_of_granule(g);
      for (index_t i = 0; i < all.count; ++i)
        all.facts[i].rest.fetch_and(~(row_facts::copying | row_facts::saved | 3 * row_facts::touched),
                                    std::memory_order_relaxed);
    }
    for (interval& one : intervals_) one.clear();
    cut_ = {};
    parity_ = 0;
    saved_now_ = 0;
    now().lost = !is_in_a_file;
  }

  /// Begins a cut; returns the number of its rows. Nothing changes rows meanwhile: no update runs, and the
  /// caller holds the mutex.
  index_t begin(bool whole, std::uint64_t first_step) noexcept {
    whole_ = whole;
    first_step_ = first_step;
    cut_parity_ = parity_;
    parity_ ^= 1;
    const std::uint32_t touched = row_facts::touched << cut_parity_;
    if (whole) {
      const std::uint32_t before = saved_now_;
      saved_now_ ^= row_facts::saved;
      cut_ = {row_facts::live | row_facts::saved, row_facts::live | before,
              row_facts::copying | touched | row_facts::saved, saved_now_};
    } else {
      cut_ = {row_facts::live | touched, row_facts::live | touched, row_facts::copying | touched, 0};
    }
    granules_ = rows_->granule_count();
    last_granule_rows_ = granules_ > 0 ? rows_->facts_of_granule(granules_ - 1).count : 0;
    expected_ = whole ? rows_->rows() : of_cut().live;
    return expected_;
  }
  /// The keys that were erased in the interval that the cut ends, each once, ascending.
  [[nodiscard]] std::span<const std::uint64_t> erased_keys() {
    auto& keys = of_cut().erased;
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    return keys;
  }

  /// Calls put(records, n) for the rows of the cut, each once, in the order of row numbers but for those that
  /// were changed meanwhile. is_stopped() ends it between two pieces. By one thread, beside everything.
  template <class Put, class IsStopped>
  status write(const Put& put, const IsStopped& is_stopped) {
    index_t put_until_now = 0;
    const auto put_some = [&](const std::byte* records, index_t n) {
      put_until_now += n;
      if (n > 0 && put_until_now <= expected_) put(records, n);
    };
    byte_list piece(memory_);
    std::byte* const records = piece.append(static_cast<std::size_t>(batch) * record_.bytes());
    is_saving_.store(true, std::memory_order_release);
    status done;
    each_batch([&](const std::uint32_t* numbers, index_t n) {
      // Not for each copy: writers of rows need the mutex too.
      if (copied_.load(std::memory_order_relaxed) >= drained_from_) drain(put_some);
      index_t held = 0;
      for (index_t i = 0; i < n; ++i) {
        if (!whole_ && i + ahead < n) fetch(rows_->address(numbers[i + ahead]));
        row_facts& facts = rows_->facts(numbers[i]);
        if (!claim::take(facts.rest, cut_)) {
          claim::wait(facts.rest);  // or else its copy may come after the last drain
          continue;
        }
        record_.pack(facts, first_step_, rows_->address(numbers[i]),
                     records + static_cast<std::size_t>(held++) * record_.bytes());
        claim::settle(facts.rest, cut_);
      }
      put_some(records, held);
      if (is_stopped()) done = {errc::stopped, "checkpoint: the save must not be stopped (it was)"};
      return done.ok();
    });
    if (!done) return done;
    drain(put_some);
    const std::lock_guard lock(mutex_);
    if (is_refused_)
      return {errc::out_of_memory, "checkpoint: memory for copies of rows must not be refused (it was)"};
    if (put_until_now != expected_)
      return {errc::invalid_value,
              "checkpoint: rows must not change while a cut is taken (some did)",
              {.value = put_until_now}};
    return {};
  }
  /// Ends the cut. If it was not written, the next one has its changes too.
  void end(bool was_written) noexcept {
    is_dropping_.store(true, std::memory_order_release);
    is_saving_.store(false, std::memory_order_release);
    {
      const std::lock_guard lock(mutex_);
      copies_.clear();
      copied_.store(0, std::memory_order_relaxed);
    }
    has_room_.notify_all();
    if (!was_written) {
      each_batch([&](const std::uint32_t* numbers, index_t n) {
        for (index_t i = 0; i < n; ++i) {
          row_facts& facts = rows_->facts(numbers[i]);
          if (claim::take(facts.rest, cut_)) {
            claim::settle(facts.rest, cut_);
          } else {
            claim::wait(facts.rest);
          }
        }
        return true;
      });
      merge();
    }
    is_dropping_.store(false, std::memory_order_release);
    const std::lock_guard lock(mutex_);
    of_cut().clear();
    copies_.clear();
    copied_.store(0, std::memory_order_relaxed);
    is_refused_ = false;
  }

 private:
  struct interval {
    explicit interval(std::pmr::memory_resource* memory) : touched(memory), erased(memory) {}
    void clear() noexcept {
      touched.clear();
      erased.clear();
      live = 0;
      lost = false;
    }
    std::pmr::vector<std::uint32_t> touched;  // numbers, of rows that may be erased since
    std::pmr::vector<std::uint64_t> erased;   // keys
    index_t live = 0;                         // rows that are touched and live
    bool lost = false;
  };
  interval& now() noexcept { return intervals_[parity_]; }
  interval& of_cut() noexcept { return intervals_[cut_parity_]; }
  [[nodiscard]] std::uint32_t touched_now() const noexcept { return row_facts::touched << parity_; }

  // Under mutex_. A change that can't be logged: the next cut is whole.
  template <class List>
  void append(List& list, std::span<const typename List::value_type> more) noexcept {
#if DEEPREC_EXCEPTIONS
    try {
#endif
      list.insert(list.end(), more.begin(), more.end());
#if DEEPREC_EXCEPTIONS
    } catch (const std::bad_alloc&) {
      now().lost = true;
    }
#endif
  }

  void preserve(const std::byte* const* rows, index_t n) noexcept {
    const auto flags_of = [&](index_t i) -> std::atomic<std::uint32_t>& {
      return rows_->facts_of(rows[i]).rest;
    };
    bool any = false;
    for (index_t i = 0; i < n; ++i) {
      if (i + 2 * ahead < n) __builtin_prefetch(&rows_->facts_of(rows[i + 2 * ahead]), 1);
      any = claim::is_due(flags_of(i), cut_) || any;
    }
    if (!any) return;
    wait_for_room();  // without a claim: the saving thread waits for those
    std::array<index_t, static_cast<std::size_t>(batch)> claimed;
    std::size_t count = 0;
    for (index_t i = 0; i < n; ++i)
      if (claim::take(flags_of(i), cut_)) claimed[count++] = i;
    copy(rows, std::span(claimed.data(), count));
    for (std::size_t k = 0; k < count; ++k) claim::settle(flags_of(claimed[k]), cut_);
    for (index_t i = 0; i < n; ++i) claim::wait(flags_of(i));  // all of its own are settled by now
  }
  // Of a row that is copied soon.
  void fetch(const std::byte* row) const noexcept {
    __builtin_prefetch(&rows_->facts_of(row), 1);
    const std::size_t bytes = (std::min)(record_.bytes(), std::size_t{1024});
    for (std::size_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at);
  }
  void copy(const std::byte* const* rows, std::span<const index_t> which) noexcept {
    if (which.empty() || is_dropping_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex_);
    std::byte* to = nullptr;
#if DEEPREC_EXCEPTIONS
    try {
#endif
      to = copies_.append(which.size() * record_.bytes());
      copied_.store(copies_.size(), std::memory_order_relaxed);
#if DEEPREC_EXCEPTIONS
    } catch (const std::bad_alloc&) {
      is_refused_ = true;  // the cut can't be written any more
      return;
    }
#endif
    for (std::size_t k = 0; k < which.size(); ++k) {
      if (k + ahead < which.size()) fetch(rows[which[k + ahead]]);
      const index_t i = which[k];
      record_.pack(rows_->facts_of(rows[i]), first_step_, rows[i], to);
      to += record_.bytes();
    }
  }
  void wait_for_room() noexcept {
    if (!is_saving_.load(std::memory_order_acquire)) return;
    std::unique_lock lock(mutex_);
    has_room_.wait(lock,
                   [&] { return copies_.size() < budget_ || !is_saving_.load(std::memory_order_acquire); });
  }
  void touch(const std::byte* const* rows, index_t n) noexcept {
    std::array<std::uint32_t, static_cast<std::size_t>(batch)> numbers;
    std::size_t count = 0;
    const std::uint32_t bit = touched_now();
    for (index_t i = 0; i < n; ++i) {
      std::atomic<std::uint32_t>& flags = rows_->facts_of(rows[i]).rest;
      if ((flags.load(std::memory_order_relaxed) & bit) != 0) continue;
      // A row that was erased since it was resolved is not touched: this step is lost.
      if ((flags.fetch_or(bit, std::memory_order_relaxed) & (row_facts::live | bit)) == row_facts::live)
        numbers[count++] = rows_->number_of(rows[i]);
    }
    if (count > 0) log(std::span(numbers.data(), count));
  }
  void log(std::span<const std::uint32_t> numbers) noexcept {
    const std::lock_guard lock(mutex_);
    now().live += static_cast<index_t>(numbers.size());
    append(now().touched, numbers);
  }
  // Calls use(numbers, n) for the rows that the cut may have, until it returns false.
  template <class Use>
  void each_batch(const Use& use) {
    std::array<std::uint32_t, static_cast<std::size_t>(batch)> numbers;
    if (!whole_) {
      const auto& all = of_cut().touched;
      for (std::size_t i = 0; i < all.size(); i += batch) {
        const auto n = (std::min)(static_cast<std::size_t>(batch), all.size() - i);
        if (!use(all.data() + i, static_cast<index_t>(n))) return;
      }
      return;
    }
    for (index_t g = 0; g < granules_; ++g) {
      const index_t count = g == granules_ - 1 ? last_granule_rows_ : rows_->rows_per_granule();
      for (index_t i = 0; i < count; i += batch) {
        const index_t n = (std::min)(batch, count - i);
        for (index_t k = 0; k < n; ++k) numbers[static_cast<std::size_t>(k)] = rows_->number_at(g, i + k);
        if (!use(numbers.data(), n)) return;
      }
    }
  }
  template <class Put>
  void drain(const Put& put) {
    {
      const std::lock_guard lock(mutex_);
      if (copies_.size() == 0) return;
      copies_.swap(drained_);
      copied_.store(0, std::memory_order_relaxed);
    }
    has_room_.notify_all();
    put(drained_.data(), static_cast<index_t>(drained_.size() / record_.bytes()));
    drained_.clear();
  }
  // The changes of a cut that was not written become those of the interval that goes on. A key that was
  // erased and came back is in both lists: what the next file has of its row wins.
  void merge() noexcept {
    interval& old = of_cut();
    std::array<std::uint32_t, static_cast<std::size_t>(batch)> numbers;
    std::size_t count = 0;
    for (const std::uint32_t number : old.touched) {
      std::atomic<std::uint32_t>& flags = rows_->facts(number).rest;
      std::uint32_t seen = flags.load(std::memory_order_relaxed);
      while ((seen & row_facts::live) != 0 && (seen & touched_now()) == 0) {
        if (!flags.compare_exchange_weak(seen, seen | touched_now(), std::memory_order_relaxed)) continue;
        numbers[count++] = number;
        break;
      }
      if (count == numbers.size()) log(std::span(numbers.data(), std::exchange(count, 0)));
    }
    log(std::span(numbers.data(), count));
    const std::lock_guard lock(mutex_);
    now().lost = now().lost || old.lost;
    append(now().erased, old.erased);
  }

  row_store* rows_;
  row_record record_;
  std::size_t budget_;
  std::size_t drained_from_;  // bytes of copies
  std::pmr::memory_resource* memory_;
  // Written by begin() and forget(), when nothing changes rows.
  cut_flags cut_;
  std::uint32_t parity_ = 0;
  std::uint32_t cut_parity_ = 1;
  std::uint32_t saved_now_ = 0;
  bool whole_ = false;
  std::uint64_t first_step_ = 0;
  index_t granules_ = 0;
  index_t last_granule_rows_ = 0;
  index_t expected_ = 0;

  std::atomic<bool> is_saving_{false};
  std::atomic<bool> is_dropping_{false};
  std::mutex mutex_;  // of what follows; the one of the table may be held
  std::condition_variable has_room_;
  std::array<interval, 2> intervals_;
  byte_list copies_;
  std::atomic<std::size_t> copied_{0};  // the size of copies_, for who does not hold the mutex
  bool is_refused_ = false;
  byte_list drained_;  // of the saving thread
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
