// Sums and maxima of the rows of a range of positions on a device: by a team of lanes, Vec columns a lane.
//
//   team      lane(), lanes(), from(x, lane), across(x, mask), ballot(b), report(...), count(...),
//             wait_for_earlier_kernels()
//             a part of a warp on the device (warp_team.cuh); one lane, or threads in lockstep, in a test
//
//   fold_positions   any rules: each lane reads one id and broadcasts it
//   each_position    all ids are used, no weights: each lane reads all ids, nothing is exchanged
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/embedding/kernels/device/device_rows.hpp>
#include <deeprec/embedding/kernels/device/device_task.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Index of the lowest bit that is set.
DEEPREC_HD DEEPREC_INLINE int lowest_bit(unsigned set) {
#if defined(__CUDA_ARCH__)
  return __ffs(static_cast<int>(set)) - 1;
#else
  return __builtin_ctz(set);
#endif
}
DEEPREC_HD DEEPREC_INLINE int bits_in(unsigned set) {
#if defined(__CUDA_ARCH__)
  return __popc(set);
#else
  return __builtin_popcount(set);
#endif
}

template <class Team>
DEEPREC_HD DEEPREC_INLINE float sum_across(const Team& team, float x) {
  for (int step = team.lanes() / 2; step > 0; step /= 2) x += team.across(x, step);
  return x;
}

/// The factor that scales a row to a norm of at most the cap.
template <class Element, int Vec, class Team, class Task>
DEEPREC_HD float clip_of(const Team& team, const Task& task, const std::byte* row) {
  float squares = 0;
  DEEPREC_ROLLED
  for (index_t c = index_t{team.lane()} * Vec; c < task.width; c += index_t{team.lanes()} * Vec) {
    float x[Vec];
    read_row<Element, Vec>(row, task.parts, c, x);
    for (int v = 0; v < Vec; ++v) squares = ::fmaf(x[v], x[v], squares);
  }
  const float norm = ::sqrtf(sum_across(team, squares));
  return norm > task.max_norm ? task.max_norm / norm : 1.0F;
}

template <int Vec, class Rules>
DEEPREC_HD DEEPREC_INLINE void fold_row(const Rules& rules, float (&total)[Vec], const float* x,
                                        float factor) {
  for (int v = 0; v < Vec; ++v) {
    if (rules.adding()) {
      total[v] = ::fmaf(x[v], factor, total[v]);
    } else {
      const float here = rules.clips() ? x[v] * factor : x[v];
      total[v] = is_nan(total[v]) || total[v] > here ? total[v] : here;
    }
  }
}

template <int Vec, class Rules>
DEEPREC_HD DEEPREC_INLINE void start_fold(const Rules& rules, float (&total)[Vec]) {
  for (int v = 0; v < Vec; ++v) total[v] = rules.adding() ? 0.0F : -__builtin_inff();
}

/// Rules known at compile time, under which each id that is no fault is used, by its row as it is.
template <class Rules>
inline constexpr bool uses_each_id = false;
template <bool Adding, bool Checks, bool Prunes>
inline constexpr bool uses_each_id<fixed_rules<Adding, false, false, Checks, Prunes>> = true;

/// fold_positions under such rules, without weights; false where an id is bad. Lanes exchange nothing: each
/// reads all ids, one address a team, and the next ids are read while rows are on their way. Nothing between
/// two loads of rows is conditional: behind the end the last id is read again, and a lane without columns
/// reads the first ones.
///
/// @tparam AtOnce  rows in flight
template <class Element, int Vec, int AtOnce, class Rules, class Task>
class each_position {
  using id_type = std::remove_cv_t<std::remove_pointer_t<decltype(Task::ids)>>;
  using lane = row_lane<Element, Vec>;

 public:
  DEEPREC_HD DEEPREC_INLINE each_position(const Task& task, index_t begin, index_t end, index_t column)
      : task_(task), next_(task.ids + begin), left_(end - begin), from_(column < task.width ? column : 0) {
    read_ids();
  }

  DEEPREC_HD DEEPREC_INLINE bool fold(const Rules& rules, float (&total)[Vec]) {
    DEEPREC_ROLLED
    while (left_ > 0) {
      bool bad = false;
      DEEPREC_UNROLLED
      for (int i = 0; i < AtOnce; ++i) bad = bad | task_.is_bad_row(ids_[i]);
      if (rules.checks() && bad) return false;
      if (left_ > AtOnce / 2) {
        fold_some<AtOnce>(rules, total);
      } else {
        fold_some<AtOnce / 2>(rules, total);
      }
    }
    return true;
  }
  /// The first bad position, after fold() has returned false.
  DEEPREC_HD index_t first_bad(index_t begin) const {
    index_t position = begin;
    DEEPREC_ROLLED
    while (!task_.is_bad_row(task_.ids[position])) ++position;
    return position;
  }

 private:
  DEEPREC_HD DEEPREC_INLINE void read_ids() {
    if (left_ >= AtOnce) {
      DEEPREC_UNROLLED
      for (int i = 0; i < AtOnce; ++i) ids_[i] = next_[i];
    } else if (left_ > 0) {
      const int last = static_cast<int>(left_) - 1;
      DEEPREC_UNROLLED
      for (int i = 0; i < AtOnce; ++i) ids_[i] = next_[i < last ? i : last];
    }
  }
  template <int Count>
  DEEPREC_HD DEEPREC_INLINE void fold_some(const Rules& rules, float (&total)[Vec]) {
    typename lane::raw rows[Count];
    DEEPREC_UNROLLED
    for (int i = 0; i < Count; ++i) lane::load(task_.row_by_32_bits(ids_[i]), task_.parts, from_, rows[i]);
    const int count = left_ < Count ? static_cast<int>(left_) : Count;
    next_ += Count;
    left_ -= Count;
    read_ids();
    DEEPREC_UNROLLED
    for (int i = 0; i < Count; ++i) {
      if (i >= count) break;
      float x[Vec];
      lane::decode(rows[i], task_.parts, x);
      fold_row<Vec>(rules, total, x, 1.0F);
    }
  }

  const Task& task_;
  const id_type* next_;
  index_t left_;
  index_t from_;
  id_type ids_[AtOnce];
};

/// Folds the rows of positions [begin, end) into the lane's columns. Returns the first bad position, or -1.
template <class Element, int Vec, class Rules, class Team, class Task>
DEEPREC_HD DEEPREC_INLINE index_t fold_positions(const Rules& rules, const Team& team, const Task& task,
                                                 index_t begin, index_t end, index_t column,
                                                 float (&total)[Vec], pool_counts& counts, index_t& stray) {
  using id_type = std::remove_cv_t<std::remove_pointer_t<decltype(task.ids)>>;
  constexpr int at_once = 4;
  const bool inside = column < task.width;
  const bool sums_weights = task.divide == divide_by::weight || task.divide == divide_by::root;
  DEEPREC_ROLLED
  for (index_t first = begin; first < end; first += team.lanes()) {
    const index_t position = first + team.lane();
    const bool here = position < end;
    const id_type id = here ? task.ids[position] : id_type{};
    const float weight = here && task.weights != nullptr ? task.weights[position] : 1.0F;
    if (rules.checks()) {
      const bool bad = here && task.bad(rules, id, weight);
      if (const unsigned any = team.ballot(bad); any != 0) return first + lowest_bit(any);
    }
    if (rules.filtered() && task.skipped != nullptr) {
      stray += bits_in(team.ballot(here && task.stray(rules, id)));
    }
    unsigned left = team.ballot(here && !(rules.filtered() && task.absent(id, weight)));
    counts.used += bits_in(left);
    DEEPREC_ROLLED
    while (left != 0) {
      if (!rules.clips() && bits_in(left) >= at_once) {
        typename row_lane<Element, Vec>::raw rows[at_once];
        float w[at_once];
        DEEPREC_UNROLLED
        for (int i = 0; i < at_once; ++i) {
          const int k = lowest_bit(left);
          left &= left - 1;
          const id_type theirs = team.from(id, k);
          w[i] = task.weights == nullptr ? 1.0F : team.from(weight, k);
          if (inside) {
            row_lane<Element, Vec>::load(task.row(static_cast<std::int64_t>(theirs)), task.parts, column,
                                         rows[i]);
          }
        }
        DEEPREC_UNROLLED
        for (int i = 0; i < at_once; ++i) {
          if (inside) {
            float x[Vec];
            row_lane<Element, Vec>::decode(rows[i], task.parts, x);
            fold_row<Vec>(rules, total, x, w[i]);
          }
          if (sums_weights) {
            counts.weight_sum += static_cast<double>(w[i]);
            counts.weight_squares += static_cast<double>(w[i]) * static_cast<double>(w[i]);
          }
        }
      } else {
        const int k = lowest_bit(left);
        left &= left - 1;
        const std::byte* const row = task.row(static_cast<std::int64_t>(team.from(id, k)));
        const float w = task.weights == nullptr ? 1.0F : team.from(weight, k);
        const float factor = rules.clips() ? clip_of<Element, Vec>(team, task, row) * w : w;
        if (inside) {
          float x[Vec];
          read_row<Element, Vec>(row, task.parts, column, x);
          fold_row<Vec>(rules, total, x, factor);
        }
        if (sums_weights) {
          counts.weight_sum += static_cast<double>(w);
          counts.weight_squares += static_cast<double>(w) * static_cast<double>(w);
        }
      }
    }
  }
  return -1;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
