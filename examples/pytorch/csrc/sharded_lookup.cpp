#include "sharded.hpp"

namespace deeprec_torch {

std::unique_ptr<sharded> make_sharded_lookups(std::shared_ptr<tables> parts, deeprec::c10d_ranks comm,
                                              const std::vector<part_place>& places,
                                              const deeprec::sharded_options& options) {
  return std::make_unique<sharded_of<deeprec::lookups_only>>(std::move(parts), std::move(comm), places,
                                                             options);
}

}  // namespace deeprec_torch
