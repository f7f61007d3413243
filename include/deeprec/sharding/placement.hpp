// Where the rows of a table are, among n ranks.
//
//   placement::rows{R}           row r at rank r mod n, there as row r / n       part_rows(rank, R, n) rows
//   placement::keys{}            a key at the rank of its virtual slot           tables that grow
//   placement::whole{rank, R}    all of them at one rank
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace placement {

/// Rows of a table of `count` by their numbers: each rank adds a part with part_rows(rank, count, n) rows.
/// Distinct rows are sent, and pooled where the bag is.
struct rows {
  index_t count = 0;
};
/// Keys of a table that grows, by 65,536 slots of their hashes: rank r has those of [r, r + 1) * 65,536 / n.
struct keys {};
/// All rows of a table of `count` at one rank; the others add one without rows. Bags are sent, and pooled
/// there.
struct whole {
  int rank = 0;
  index_t count = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::placement
