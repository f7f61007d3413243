// The batches of a step of a sharded_group, from resolve to update.
#pragma once

#include <span>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The batches of a step, resolved at the owners of their rows. It is of the group, which has one at a time:
/// the next resolve ends it.
///
/// @pre     group, tables and batches outlive it; the batches are not changed
/// @threads as the group
template <class Group>
class sharded_rows {
 public:
  [[nodiscard]] Group& group() const noexcept { return *group_; }
  [[nodiscard]] std::span<const typename Group::bags_type> bags() const noexcept { return bags_; }
  /// Of the first feature of all ranks' batches: 0 where all of their data have ended.
  [[nodiscard]] index_t bags_of_all() const noexcept { return bags_of_all_; }

  /// For resolve.
  sharded_rows(Group& group, std::span<const typename Group::bags_type> bags, index_t bags_of_all) noexcept
      : group_(&group), bags_(bags), bags_of_all_(bags_of_all) {}

 private:
  Group* group_;
  std::span<const typename Group::bags_type> bags_;
  index_t bags_of_all_;
};

}}  // namespace deeprec::DEEPREC_ABI
