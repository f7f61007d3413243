// Where the rows of a table are, among n ranks.
//
//   placement::rows{R}           row r at rank r mod n, there as row r / n       part_rows(rank, R, n) rows
//   placement::keys{}            a key at the rank of its virtual slot           tables that grow
//   placement::rows{R, pooled_at::owner}, keys{pooled_at::owner}                 long bags: sums are sent
//   placement::whole{rank, R}    all of them at one rank
//   placement::columns{{2, 0}, R, D}   a slice of the columns of all rows at each of some ranks
//   placement::replicated{R}     all of them at every rank
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/embedding/batches/partition_strategy.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Where the rows of a bag that lie at several ranks are added.
enum class pooled_at : std::uint8_t {
  bag,          ///< at the rank of the bag, to which the distinct rows of its batch are sent
  owner,        ///< the rows of each owner there: a sum is sent for each bag and owner of its ids
  fewer_bytes,  ///< as one of the two, by the bytes of the three messages: each rank chooses for each batch
};

}}  // namespace deeprec::DEEPREC_ABI

namespace deeprec { inline namespace DEEPREC_ABI { namespace placement {

/// Rows of a table of `count` by their numbers: each rank adds a part with part_rows(rank, count, n) rows.
struct rows {
  index_t count = 0;
  pooled_at pooled = pooled_at::bag;
};
/// Keys of a table that grows, by 65,536 slots of their hashes: rank r has those of [r, r + 1) * 65,536 / n.
struct keys {
  pooled_at pooled = pooled_at::bag;
};
/// All rows of a table of `count` at one rank; the others add one without rows. Bags are sent, and pooled
/// there.
struct whole {
  int rank = 0;
  index_t count = 0;
};
/// Columns of all rows of a table (count, width): the i-th of `ranks` has the i-th slice, of part_rows(i,
/// width, ranks.size()) columns. Other ranks add a table without rows. Bags are sent to each of them, and
/// pooled there.
struct columns {
  std::vector<int> ranks{};
  index_t count = 0;
  index_t width = 0;

  /// Columns of a slice, and the first one.
  ///
  /// @pre     0 <= slice < ranks.size()
  /// @cost    O(1); O(slice)
  /// @threads reentrant
  /// @error   none
  [[nodiscard]] index_t slice_width(std::size_t slice) const noexcept {
    return part_rows(static_cast<index_t>(slice), width, static_cast<index_t>(ranks.size()));
  }
  [[nodiscard]] index_t first_column(std::size_t slice) const noexcept {
    index_t first = 0;
    for (std::size_t i = 0; i < slice; ++i) first += slice_width(i);
    return first;
  }
};

/// All rows of a table of `count` at every rank, which looks up in its own: no rows are sent. Gradients go to
/// all ranks, so each has the same rows after a step.
struct replicated {
  index_t count = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::placement
