// What a lookup and an update of all features (feature_batches.hpp) allocate at most, resolution included:
// for scratch that is taken at once.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/embedding/groups/detail/features.hpp>
#include <deeprec/embedding/groups/detail/update_work.hpp>
#include <deeprec/embedding/kernels/host/table_parts.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/support/unit_flags.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Upper bounds, for batches whose features are of type Feature and whose ids are Bags.
template <class Feature, class Bags, class = unit>
struct batch_bounds {
  using feature_list = std::span<const std::unique_ptr<Feature>>;
  using table_list = std::span<const std::size_t>;  // the first feature of each table

  static index_t lookup_bytes(feature_list features, const group_sizes& sizes,
                              std::span<const Bags> bags) noexcept {
    index_t bytes = capped_sum(bytes_to_resolve(features, sizes, bags),
                               static_cast<index_t>(sizes.pools + bags.size() * bytes_a_feature));
    for (std::size_t t = 0; t < bags.size(); ++t) {
      if (bags[t].id_count() > chunk_positions) {
        bytes = capped_sum(bytes, features[t]->long_bag_bytes(bags[t]));
      }
    }
    return bytes;
  }
  static index_t update_bytes(const erased_context& ctx, feature_list features, const group_sizes& sizes,
                              table_list tables, std::span<const Bags> bags) noexcept {
    const auto positions = [&](std::size_t t) { return most_positions(bags[t]); };
    const auto numbered = [&](std::size_t t) { return features[t]->grouped(bags[t]); };
    double ns = 0;
    for (const std::size_t first : tables)
      ns += work_of(features, first, positions, numbered).ns(*ctx.tuning);
    step_memory memory;
    auto units = static_cast<index_t>(tables.size());
    for (const std::size_t first : tables) {
      table_work work = work_of(features, first, positions, numbered);
      work.parts = parts_of(ctx, work, ns);
      memory.add(work, false, ctx.executor->concurrency());
      units += work.parts;
    }
    // The units are placed anew by the thread that begins with them.
    const auto lists = static_cast<index_t>(tables.size() * (sizeof(table_work) + sizeof(parts_memory))) +
                       2 * units * static_cast<index_t>(sizeof(step_unit));
    return capped_sum(bytes_to_resolve(features, sizes, bags),
                      capped_sum(memory.bytes(), lists + bytes_a_call));
  }

 private:
  // Lists of pointers and of pieces, and what alignment may take.
  static constexpr std::size_t bytes_a_feature = 96;
  static constexpr index_t bytes_a_call = 1024;

  static index_t bytes_to_resolve(feature_list features, const group_sizes& sizes,
                                  std::span<const Bags> bags) noexcept {
    auto bytes = static_cast<index_t>(sizes.batches + bags.size() * bytes_a_feature) + bytes_a_call;
    for (std::size_t t = 0; sizes.stores_addresses && t < bags.size(); ++t) {
      bytes = capped_sum(bytes, features[t]->address_bytes(bags[t]));
    }
    return bytes;
  }
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
