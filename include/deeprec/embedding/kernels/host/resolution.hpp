// A batch whose ids were checked and whose rows are known. Everything that reads ids goes through it:
// lookups, gradients and updates; resolved_rows (resolve.hpp) is its public form.
//
//   open       checks the source and the offsets, takes the source's guard
//   examine    positions [begin, end), on any thread: checks ids and weights, and locates rows that are not
//              found by arithmetic
//   admit      inserts the keys that were absent, where the caller asks for it
//   finish     locates the default row
//
//   direct table    row = base + id * stride; nothing is stored
//   other sources   row = addresses[position]; null where the id counts as absent
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <memory_resource>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/kernels/host/lookup_kernels.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/embedding/tables/row_source.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/support/first_fault.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {
// Loops that compilers may vectorise have the compiler flags of their unit in their names, as kernels do.
inline namespace DEEPREC_UNIT {

/// The first position in [begin, end) with a stray id, or with an id that is not absent and a NaN weight; end
/// when there is none.
template <class Pooling, class Id>
index_t first_bad_position(isa which, const Id* ids, const float* weights, index_t begin, index_t end,
                           index_t rows, std::int64_t padding) noexcept {
  if constexpr (prunes_weights<Pooling>) weights = nullptr;  // weights not above 0 are pruned, NaN as well
  bool bad =
      with_isa_up_to_avx512(which, [&](auto region) { return any_bad_id(region, ids, begin, end, rows); });
  if (weights != nullptr) {
    for (index_t k = begin; k < end; ++k) bad |= is_nan(weights[k]);
  }
  if (!bad) [[likely]]
    return end;
  for (index_t k = begin; k < end; ++k) {
    const auto id = id_number(ids[k]);
    if (is_stray_id<Pooling>(id, rows, padding)) return k;
    // An id that is out of range and not stray is absent.
    if (weights != nullptr && is_nan(weights[k]) && !is_absent(id, rows, padding)) return k;
  }
  return end;
}

/// The bag that holds a position: the last one that begins at or before it.
template <class Ranges>
index_t bag_of_position(const Ranges& ranges, index_t bags, index_t position) noexcept {
  index_t low = 0;
  for (index_t high = bags; high - low > 1;) {
    const index_t middle = low + (high - low) / 2;
    (ranges.begin(middle) <= position ? low : high) = middle;
  }
  return low;
}

/// Positions per piece of a check.
inline constexpr index_t check_positions_at_once = index_t{1} << 14;

/// The time of an examination, about: a check reads the ids; a source other than a table is searched for
/// each.
inline double ns_of_examination(index_t positions, bool direct) noexcept {
  return static_cast<double>(positions) * (direct ? 0.25 : 20.0);
}

/// The guard of a source; empty where it has none.
template <class Source>
struct guard_of {
  struct type {};
};
template <GuardedRowSource Source>
struct guard_of<Source> {
  using type = decltype(std::declval<const Source&>().guard());
};

template <class Source, class Bags, class Pooling>
class resolution {
  struct nothing {};

 public:
  using source_type = Source;
  using bags_type = Bags;
  using pooling_type = Pooling;
  using id_type = typename Bags::id_type;
  static constexpr bool is_direct = DirectRowSource<Source>;
  static constexpr bool is_keyed = KeyedRowSource<Source, id_type>;
  static constexpr bool find_may_fail = requires(const Source& source, const id_type* ids) {
    { source.find(ids, index_t{}, static_cast<const std::byte**>(nullptr)) } -> std::convertible_to<status>;
  };
  static constexpr bool keeps_guard = StableGrowingRowSource<Source, id_type>;
  static_assert(
      is_direct || is_keyed || ResolvingRowSource<Source, id_type>,
      "deeprec::lookup: not a row source. Fix: give it data(), or resolve(ids, n, addresses), or "
      "find(keys, n, addresses) for this type of ids (see deeprec/embedding/tables/row_source.hpp).");

  using rows_type =
      std::conditional_t<is_direct && !std::is_integral_v<id_type>, direct_rows<id_type>, rows_by_number>;
  static constexpr bool checks = std::is_same_v<typename Pooling::bounds_mode, bounds::check_t>;
  /// Whether examine() has work.
  static constexpr bool examines = checks || !is_direct;

  resolution(const Source& source, const Bags& bags, const Pooling& pooling)
      : source_(source), bags_(bags), pooling_(pooling), skipped_(skip_counter_of(pooling)) {}

  [[nodiscard]] const Source& source() const noexcept { return source_; }
  [[nodiscard]] const Bags& bags() const noexcept { return bags_; }
  [[nodiscard]] const Pooling& pooling() const noexcept { return pooling_; }

  /// Upper bound of addresses(), before open().
  [[nodiscard]] index_t most_addresses() const noexcept { return is_direct ? 0 : most_positions(bags_); }

  /// Checks the source and the offsets, which are read once. `admits`: absent keys are left to admit().
  status open(bool admits = false) {
    one_hot_ = bags_.is_one_hot();
    if (!one_hot_) {
      if (const status s = bags_.validate(); !s) return s;
    }
    positions_ = bags_.end_position() - bags_.first_position();
    admits_ = admits;
    if constexpr (is_keyed) {
      if constexpr (find_may_fail) not_found_ = std::make_shared<fault_report>();
      take_guard();
      return {};
    } else {
      if (const status s = check_source(source_); !s) return s;
      return check_default_row(pooling_, source_.rows());
    }
  }

  [[nodiscard]] index_t positions() const noexcept { return positions_; }
  [[nodiscard]] bool is_one_hot() const noexcept { return one_hot_; }
  /// Number of addresses that are stored.
  [[nodiscard]] index_t addresses() const noexcept { return is_direct ? 0 : positions_; }
  /// The memory of addresses(); called before examine().
  void place_addresses(const std::byte** addresses) noexcept { addresses_ = addresses; }

  /// Examines the positions [begin, end) of positions().
  void examine(isa which, index_t begin, index_t end, first_position& bad) {
    if constexpr (is_keyed) {
      if (const status s = find(bags_.ids() + first() + begin, end - begin, addresses_ + begin); !s) {
        if constexpr (find_may_fail) not_found_->add(begin, s);
        return bad.see(first() + begin);
      }
      if (!admits_) judge(begin, end, bad);
    } else {
      if constexpr (checks) {
        const index_t found =
            first_bad_position<Pooling>(which, bags_.ids(), bags_.weights(), first() + begin, first() + end,
                                        source_.rows(), padding_of(pooling_));
        if (found != first() + end) {
          return bad.see(found);
        }
      }
      if constexpr (!is_direct) resolve_present(begin, end);
    }
  }

  /// Of the first find() that failed in examine(): addresses are missing then.
  [[nodiscard]] status found() const {
    if constexpr (find_may_fail) return not_found_->first();
    return {};
  }
  /// The fault at the position that examine() saw first; ok where it saw none.
  [[nodiscard]] status fault(const first_position& bad) const {
    if (const status s = found(); !s) return s;
    const index_t position = bad.value();
    if (position == first_position::none) [[likely]]
      return {};
    const auto id = id_number(bags_.ids()[position]);
    bool is_stray = false;
    if constexpr (is_keyed) {
      is_stray = addresses_[position - first()] == nullptr;
    } else {
      is_stray = is_stray_id<Pooling>(id, source_.rows(), padding_of(pooling_));
    }
    return {is_stray ? errc::id_out_of_range : errc::weight_is_nan,
            {.bag = bag_of_position(bags_.ranges(), bags_.bags(), position),
             .position = position,
             .value = static_cast<std::int64_t>(id)}};
  }

  /// Whether admit() has to be called after examine().
  [[nodiscard]] bool admits() const noexcept { return admits_; }
  /// Writes the absent keys of the batch, which its source may admit.
  void list_absent(std::pmr::vector<id_type>& absent) const {
    for (index_t k = 0; k < positions_; ++k) {
      if (addresses_[k] == nullptr && !is_left_out(first() + k)) absent.push_back(bags_.ids()[first() + k]);
    }
  }
  /// While the object exists, the source erases no row that was found.
  ///
  /// @pre no row is placed meanwhile
  [[nodiscard]] auto hold_found() const {
    if constexpr (EvictingRowSource<Source>) {
      return source_.hold(addresses_, positions_);
    } else {
      return nothing{};
    }
  }
  /// The rows of those keys, as the source admitted them.
  void place_admitted(const std::byte* const* rows) noexcept {
    for (index_t k = 0; k < positions_; ++k) {
      if (addresses_[k] == nullptr && !is_left_out(first() + k)) addresses_[k] = *rows++;
    }
  }
  void take_guard() {
    if constexpr (GuardedRowSource<Source>) guard_.emplace(source_.guard());
  }
  void drop_guard() noexcept { guard_.reset(); }
  /// Ends admission: keys that are still absent are treated as the policies specify.
  void judge_all(first_position& bad) {
    admits_ = false;
    if constexpr (is_keyed) judge(0, positions_, bad);
  }
  void end_admission() noexcept { admits_ = false; }

  /// Locates the row of empty bags, if there is one.
  status finish() {
    if constexpr (fills<Pooling>) {
      const std::int64_t number = pooling_.template get<empty_bag::default_row>().id;
      if constexpr (is_direct) {
        default_row_ = source_.data() + number * source_.format().stride_bytes();
      } else {
        const auto id = static_cast<id_type>(number);
        if constexpr (is_keyed) {
          if (const status s = find(&id, 1, &default_row_); !s) return s;
          if (default_row_ == nullptr) {
            return {
                errc::id_out_of_range, "pooling: default_row must be a row of the table", {.value = number}};
          }
        } else {
          source_.resolve(&id, 1, &default_row_);
        }
      }
    }
    return {};
  }

  [[nodiscard]] rows_type rows() const noexcept {
    if constexpr (is_direct) {
      return {source_.data(),       source_.format().stride_bytes(),
              bags_.ids(),          source_.rows(),
              padding_of(pooling_), pruned_by()};
    } else {
      return {addresses_, first()};
    }
  }
  /// The number of rows, for the distance of prefetches.
  [[nodiscard]] index_t table_rows() const noexcept {
    if constexpr (is_keyed) {
      return (std::numeric_limits<index_t>::max)();
    } else {
      return source_.rows();
    }
  }
  /// The time of reading the rows of all positions, about.
  [[nodiscard]] double ns_of_rows(const kernel_tuning& tuning) const noexcept {
    return ns_of_row(tuning, table_rows(), source_.format().stride_bytes()) *
               static_cast<double>(positions_) +
           2 * static_cast<double>(bags_.bags());
  }
  [[nodiscard]] const std::byte* default_row() const noexcept { return default_row_; }

  /// The row number of a position: its id, or its key.
  [[nodiscard]] index_t number(index_t position) const noexcept {
    return static_cast<index_t>(id_number(bags_.ids()[position]));
  }

  /// Adds the ids that the policy `skip` leaves out to its counter.
  void count_skipped() const noexcept {
    if (skipped_ == nullptr) return;
    index_t count = 0;
    for (index_t k = first(); k < first() + positions_; ++k) {
      if constexpr (is_keyed) {
        count += addresses_[k - first()] == nullptr && !is_left_out(k) ? 1 : 0;
      } else {
        const auto id = id_number(bags_.ids()[k]);
        count += is_stray_id<Pooling>(id, source_.rows(), padding_of(pooling_)) ? 1 : 0;
      }
    }
    add_skipped(skipped_, count);
  }
  /// The same, for rows that are kept: verbs that take them later count nothing.
  void count_skipped_once() noexcept {
    count_skipped();
    skipped_ = nullptr;
  }

 private:
  [[nodiscard]] index_t first() const noexcept { return bags_.first_position(); }
  status find(const id_type* keys, index_t n, const std::byte** addresses) const {
    if constexpr (find_may_fail) {
      return source_.find(keys, n, addresses);
    } else {
      source_.find(keys, n, addresses);
      return {};
    }
  }
  [[nodiscard]] const float* pruned_by() const noexcept {
    return prunes_weights<Pooling> ? bags_.weights() : nullptr;
  }

  // Whether the policies leave out a position, whatever its row.
  [[nodiscard]] bool is_left_out([[maybe_unused]] index_t position) const noexcept {
    if constexpr (std::is_same_v<typename Pooling::padding_mode, padding::id>) {
      if (static_cast<std::int64_t>(id_number(bags_.ids()[position])) == padding_of(pooling_)) return true;
    }
    if constexpr (prunes<Pooling>) {
      const auto id = id_number(bags_.ids()[position]);
      if (std::is_signed_v<decltype(id)> && static_cast<std::int64_t>(id) < 0) return true;
      const float* const weights = pruned_by();
      if (weights != nullptr && !(weights[position] > 0.0F)) return true;
    }
    return false;
  }

  // Applies the policies to the addresses of a keyed source.
  void judge(index_t begin, index_t end, first_position& bad) {
    const float* const weights = prunes_weights<Pooling> ? nullptr : bags_.weights();
    const std::byte* instead = nullptr;
    if constexpr (requires { source_.default_row(); }) instead = source_.default_row();
    for (index_t k = begin; k < end; ++k) {
      const index_t position = first() + k;
      if (is_left_out(position)) {
        addresses_[k] = nullptr;
        continue;
      }
      if (addresses_[k] == nullptr) addresses_[k] = instead;
      if constexpr (checks) {
        if (addresses_[k] == nullptr || (weights != nullptr && is_nan(weights[position]))) {
          return bad.see(position);
        }
      }
    }
  }

  void resolve_present(index_t begin, index_t end) {
    const direct_rows<id_type> rule{nullptr,    0, bags_.ids(), source_.rows(), padding_of(pooling_),
                                    pruned_by()};
    const id_type* const ids = bags_.ids() + first();
    for (index_t from = begin; from < end;) {
      index_t to = from;
      if constexpr (kernel_policy<Pooling>::ids == ids_are::filtered) {
        while (to < end && !rule.absent(first() + to)) ++to;
      } else {
        to = end;
      }
      if (to > from) source_.resolve(ids + from, to - from, addresses_ + from);
      if (to < end) addresses_[to] = nullptr;
      from = to + 1;
    }
  }

  Source source_;
  Bags bags_;
  Pooling pooling_;
  index_t* skipped_;  // null: not counted, or counted before
  index_t positions_ = 0;
  bool one_hot_ = false;
  bool admits_ = false;
  const std::byte** addresses_ = nullptr;
  const std::byte* default_row_ = nullptr;
  [[no_unique_address]] std::optional<typename guard_of<Source>::type> guard_;
  [[no_unique_address]] std::conditional_t<find_may_fail, std::shared_ptr<fault_report>, nothing> not_found_;
};

}  // namespace DEEPREC_UNIT
}}}  // namespace deeprec::DEEPREC_ABI::detail
