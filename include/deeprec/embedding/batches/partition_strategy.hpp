// How the ids of a table of V rows are distributed over P parts: TensorFlow's partition strategies.
//
//   partition_strategy::div   consecutive ids together   0 1 2 3 | 4 5 6 | 7 8 9  V = 10, P = 3: the first
//   partition_strategy::mod   every P-th id together     0 3 6 9 | 1 4 7 | 2 5 8  V % P parts have 1 row more
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace partition_strategy {

struct div_t {};

struct mod_t {};

inline constexpr div_t div{};

inline constexpr mod_t mod{};

}  // namespace partition_strategy

/// A part, and a row in it.
struct part_place {
  index_t part;
  index_t local;

  friend constexpr bool operator==(const part_place&, const part_place&) = default;
};

/// Rows of part p, by either strategy.
///
/// @pre     rows >= 0, 0 <= p < parts
/// @cost    two divisions
/// @threads reentrant
/// @error   none
DEEPREC_HD constexpr index_t part_rows(index_t p, index_t rows, index_t parts) noexcept {
  return rows / parts + (p < rows % parts ? 1 : 0);
}

namespace partition_strategy {

/// Part and local row of an id by div; {-1, -1} for an id outside [0, rows).
///
/// @pre     parts > 0
/// @cost    two divisions
/// @threads reentrant
/// @error   none
DEEPREC_HD constexpr part_place div_place(index_t id, index_t rows, index_t parts) noexcept {
  if (id < 0 || id >= rows) return {-1, -1};
  const index_t each = rows / parts;
  const index_t extras = rows % parts;
  const index_t longer = each + (extras > 0 ? 1 : 0);  // each + 1 may overflow without extras
  if (id < extras * longer) return {id / longer, id % longer};
  return {(id - extras) / each, (id - extras) % each};
}

/// Part and local row of an id by mod. Any id has a part: division rounds down, so -1 is row -1 of the last
/// part. A caller that uses local as an index must check that it is not negative.
///
/// @pre     parts > 0
/// @post    0 <= part < parts, and id = local * parts + part
/// @cost    one division
/// @threads reentrant
/// @error   none
DEEPREC_HD constexpr part_place mod_place(index_t id, index_t parts) noexcept {
  const index_t remainder = id % parts;
  const index_t below = remainder < 0 ? 1 : 0;
  return {remainder + below * parts, id / parts - below};
}

}  // namespace partition_strategy

}}  // namespace deeprec::DEEPREC_ABI
