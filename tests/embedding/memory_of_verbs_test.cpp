// Every verb that allocates or grows an output: what it does when memory is refused and when it is then
// called again, who asks for the memory, and what it returns when the output owns an input.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <memory_resource>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <deeprec/embedding/batches/fill_empty_bags.hpp>
#include <deeprec/embedding/batches/jagged_batch.hpp>
#include <deeprec/embedding/batches/partition.hpp>
#include <deeprec/embedding/batches/partitioned_table.hpp>
#include <deeprec/embedding/batches/prune_invalid.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/embedding/lookup/fused_lookup.hpp>
#include <deeprec/embedding/lookup/gather.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/tables/quantize.hpp>
#include <deeprec/embedding/tables/quantized_rows.hpp>
#include <deeprec/embedding/training/gradient.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/ops/dedup_rows.hpp>
#include <deeprec/ops/partition_unique.hpp>
#include <deeprec/ops/row_select.hpp>
#include <deeprec/ops/unique.hpp>
#include <deeprec/optim/apply_row.hpp>
#include <deeprec/optim/global_norm.hpp>
#include <deeprec/optim/optimizers.hpp>

#include "support/seed.hpp"
#include "support/test_resources.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

using here_context = context<executor_ref>;

// ---- inputs of all verbs ------------------------------------------------------------------------

constexpr index_t bags = 30, rows = 300, width = 5;

/// Bags of which the first are short, one has 9000 ids of which most name one row, and some are empty.
struct inputs {
  inputs() {
    std::mt19937_64 random(seed() + 900);
    for (index_t b = 0; b < bags; ++b) {
      const index_t size = b == 20 ? 9000 : b % 4;
      for (index_t k = 0; k < size; ++k) {
        ids.push_back(k % 3 == 0 ? static_cast<std::int64_t>(random() % rows) : 7);
        weights.push_back(0.5F + static_cast<float>(random() % 8) / 8);
        of_row.push_back(b);
      }
      offsets.push_back(static_cast<std::int64_t>(ids.size()));
    }
    invalid = ids;
    for (std::size_t k = 0; k < invalid.size(); k += 5) invalid[k] = -1;
    wide = ids;
    for (auto& id : wide) id *= 0x123456789;
    mixed_rows = of_row;
    std::reverse(mixed_rows.begin(), mixed_rows.end());
    for (std::size_t i = 0; i < static_cast<std::size_t>(rows * width); ++i) {
      values.push_back(static_cast<float>(random() % 1000) / 100 - 5);
    }
    gradient.assign(values.begin(), values.begin() + bags * width);
    for (index_t k = 0; k < 40'000; ++k) many.push_back(k % 11 == 0 ? k % rows : 3);
  }
  [[nodiscard]] index_t n() const { return static_cast<index_t>(ids.size()); }
  [[nodiscard]] jagged_view<> batch(bool weighted = true) const {
    return {offsets.data(), bags, ids.data(), n(), weighted ? weights.data() : nullptr};
  }
  [[nodiscard]] jagged_view<> with_invalid() const {
    return {offsets.data(), bags, invalid.data(), n(), weights.data()};
  }
  [[nodiscard]] coo_view<> entries(bool in_order, bool valid = true) const {
    return {in_order ? of_row.data() : mixed_rows.data(), valid ? ids.data() : invalid.data(), n(), bags,
            weights.data()};
  }
  [[nodiscard]] matrix_view<const float> table() const { return {values.data(), rows, width}; }
  [[nodiscard]] matrix_view<const float> of_out() const { return {gradient.data(), bags, width}; }

  std::vector<std::int64_t> offsets{0}, ids, invalid, wide, of_row, mixed_rows, many;
  std::vector<float> weights, values, gradient;
};

const inputs& given() {
  static const inputs made;
  return made;
}

// ---- verbs --------------------------------------------------------------------------------------

/// One call of a verb: its outputs as they were made, what it does, and the bytes that it may have written.
struct verb_call {
  std::function<status(const here_context&)> run;
  std::function<std::string()> written;
};

struct verb {
  const char* name;
  bool allocates;
  verb_call (*make)(std::pmr::memory_resource* of_outputs);
};

void show(std::string& all, const void* data, std::size_t bytes) {
  all += std::to_string(bytes) + ":";
  if (bytes > 0) all.append(static_cast<const char*>(data), bytes);
}
template <class... Arrays>
std::string show_all(const Arrays&... arrays) {
  std::string all;
  (show(all, arrays.data(), arrays.size() * sizeof(arrays[0])), ...);
  return all;
}
template <class Out>
std::string show_owner(const Out& out) {
  return std::apply([](const auto&... arrays) { return show_all(arrays...); }, detail::arrays_of(out));
}

/// A verb that fills a matrix of floats.
template <class Run>
verb_call into_matrix(index_t count, index_t columns, Run run) {
  auto out = std::make_shared<std::vector<float>>(static_cast<std::size_t>(count * columns), -7.0F);
  auto counter = std::make_shared<std::vector<index_t>>(1, 11);
  return {[=](const here_context& ctx) {
            return run(ctx, matrix_view<float>(out->data(), count, columns), counter->front());
          },
          [=] { return show_all(*out, *counter); }};
}
/// A verb that fills an owner, which holds something already.
template <class Out, class Run>
verb_call into_owner(std::pmr::memory_resource* memory, Run run) {
  auto out = std::make_shared<Out>(memory);
  std::apply(
      [](const auto&... arrays) {
        (const_cast<std::remove_cvref_t<decltype(arrays)>&>(arrays).assign(3, 1), ...);
      },
      detail::arrays_of(*out));
  auto extra = std::make_shared<std::vector<std::uint8_t>>(static_cast<std::size_t>(bags), std::uint8_t{9});
  auto counter = std::make_shared<std::vector<index_t>>(1, 11);
  return {[=](const here_context& ctx) { return run(ctx, *out, *extra, counter->front()); },
          [=] { return show_owner(*out) + show_all(*extra, *counter); }};
}
/// A verb that fills memory of the caller for the bags of given(), and flags.
template <class Run>
verb_call into_given_bags(Run run) {
  struct arrays {
    std::vector<std::int32_t> offsets = std::vector<std::int32_t>(static_cast<std::size_t>(bags) + 1, 3);
    std::vector<std::int64_t> ids = std::vector<std::int64_t>(given().ids.size() + 100, 4);
    std::vector<float> weights = std::vector<float>(ids.size(), 5);
    std::vector<std::uint8_t> empty = std::vector<std::uint8_t>(static_cast<std::size_t>(bags), 9);
  };
  auto to = std::make_shared<arrays>();
  return {[=](const here_context& ctx) {
            return run(ctx, jagged_out<std::int64_t, std::int32_t>{to->offsets, to->ids, to->weights},
                       array_view<std::uint8_t>(to->empty));
          },
          [=] { return show_all(to->offsets, to->ids, to->weights, to->empty); }};
}
/// A verb that changes a table.
template <class Format, class Run>
verb_call into_table(Run run, int tables = 1) {
  auto made = std::make_shared<std::vector<dense_table<Format>>>();
  for (int t = 0; t < tables; ++t) {
    if constexpr (std::is_constructible_v<Format, index_t, row_layout>) {
      made->emplace_back(rows, Format(width, {.state_floats = 2}), std::pmr::new_delete_resource());
    } else {
      made->emplace_back(rows, Format(width), std::pmr::new_delete_resource());
    }
  }
  auto counter = std::make_shared<std::vector<index_t>>(1, 11);
  return {[=](const here_context& ctx) { return run(ctx, *made, counter->front()); },
          [=] {
            std::string all = show_all(*counter);
            for (const auto& table : *made) show(all, table.view().data(), table.bytes());
            return all;
          }};
}

using memory_of_outputs = std::pmr::memory_resource*;

/// The rows of the table in two parts, as a row source that resolves.
struct two_parts {
  two_parts() {
    for (index_t id = 0; id < rows; ++id) {
      auto& part = parts[static_cast<std::size_t>(id % 2)];
      part.insert(part.end(), given().table().row(id), given().table().row(id) + width);
    }
    for (const auto& part : parts) {
      views.push_back(
          as_table(matrix_view<const float>(part.data(), static_cast<index_t>(part.size()) / width, width)));
    }
  }
  std::vector<float> parts[2];
  std::vector<const_table_view<f32_rows>> views;
};
const two_parts& in_two_parts() {
  static const two_parts made;
  return made;
}

/// Five features of four tables: large, small, without ids, and two of one table.
struct features_of_tables {
  features_of_tables(std::vector<dense_table<f32_rows>>& tables, index_t& skipped) {
    group.add(tables[0].view(), combiner::sum);
    group.add(tables[1].view(), pooling{combiner::mean, bounds::skip(skipped)});
    group.add(tables[2].view(), combiner::sum);
    group.add(tables[1].view(), pooling{combiner::mean, bounds::skip(skipped)});
    group.add(tables[3].view(), combiner::sqrtn);
    const auto& ids = given().many;
    batches = {{ids.data(), 4, 10'000},
               {ids.data(), 4, 1'500},
               {ids.data(), 4, 0},
               {ids.data(), 4, 20},
               {ids.data(), 4, 9'000}};
  }
  feature_group<rowwise_adagrad, fixed_hotness_view<>> group;
  std::vector<fixed_hotness_view<>> batches;
};

/// Tables of rows with a state, whose values are those of given().
struct trained_tables {
  explicit trained_tables(int count) {
    for (int t = 0; t < count; ++t) {
      tables.emplace_back(rows, f32_rows(width, {.state_floats = 2}), std::pmr::new_delete_resource());
      for (index_t r = 0; r < rows; ++r) {
        tables.back().format().encode(given().table().row(r), tables.back().view().row(r));
      }
    }
  }
  [[nodiscard]] std::string written() const {
    std::string all = show_all(skipped);
    for (const auto& table : tables) show(all, table.view().data(), table.bytes());
    return all;
  }
  std::vector<dense_table<f32_rows>> tables;
  std::vector<index_t> skipped = std::vector<index_t>(1, 11);
};

/// A batch that was resolved before the verb; its memory is that of the outputs.
struct resolved_table : trained_tables {
  explicit resolved_table(std::pmr::memory_resource* memory) : trained_tables(1) {
    inline_executor here;
    context ctx(here);
    ctx.memory = memory;
    resolved.emplace(resolve(ctx, tables[0].view(), given().batch(), combiner::mean).or_throw());
  }
  using means = decltype(detail::as_pooling(combiner::mean));
  std::optional<resolved_rows<table_view<f32_rows>, jagged_view<>, means>> resolved;
};
/// The same, for features.
struct resolved_group : trained_tables {
  explicit resolved_group(std::pmr::memory_resource* memory)
      : trained_tables(4), features(tables, skipped[0]) {
    inline_executor here;
    context ctx(here);
    ctx.memory = memory;
    resolved.emplace(resolve(ctx, features.group, features.batches).or_throw());
  }
  features_of_tables features;
  std::optional<resolved_features<feature_group<rowwise_adagrad, fixed_hotness_view<>>>> resolved;
};

template <class How>
verb_call looked_up(const How& how) {
  return into_matrix(bags, width, [=](const here_context& ctx, matrix_view<float> out, index_t&) {
    return lookup(ctx, as_table(given().table()), given().batch(), how, out);
  });
}

const verb every_verb[] = {
    {"lookup: a long bag", true, [](memory_of_outputs) { return looked_up(combiner::sum); }},
    {"lookup: mean", true, [](memory_of_outputs) { return looked_up(combiner::mean); }},
    {"lookup: skip, counted; added to out", true,
     [](memory_of_outputs) {
       return into_matrix(bags, width, [](const here_context& ctx, matrix_view<float> out, index_t& skipped) {
         return lookup(ctx, as_table(given().table().rows(0, 100)), given().batch(),
                       pooling{combiner::sum, bounds::skip(skipped), output::accumulate}, out);
       });
     }},
    {"lookup: rows of a source", true,
     [](memory_of_outputs) {
       return into_matrix(bags, width, [](const here_context& ctx, matrix_view<float> out, index_t&) {
         return lookup(ctx, partitioned_table(in_two_parts().views, partition_strategy::mod),
                       given().batch(false), pooling{combiner::max, empty_bag::default_row{4}}, out);
       });
     }},
    {"lookup: feature_group", true,
     [](memory_of_outputs) {
       return into_matrix(bags, 2 * width, [](const here_context& ctx, matrix_view<float> out, index_t&) {
         feature_group<> group;
         group.add(as_table(given().table()), combiner::sum);
         group.add(partitioned_table(in_two_parts().views, partition_strategy::mod), combiner::mean);
         const std::vector<jagged_view<>> batches{given().batch(), given().batch(false)};
         return lookup(ctx, group, batches, out);
       });
     }},
    {"fused_lookup: entries in any order", true,
     [](memory_of_outputs) {
       return into_matrix(bags, width, [](const here_context& ctx, matrix_view<float> out, index_t&) {
         return fused_lookup(ctx, as_table(given().table()), given().entries(false, false), combiner::mean,
                             out);
       });
     }},
    {"fused_lookup: entries in order", true,
     [](memory_of_outputs) {
       return into_matrix(bags, width, [](const here_context& ctx, matrix_view<float> out, index_t&) {
         return fused_lookup(ctx, as_table(given().table()), given().entries(true, false), combiner::sum,
                             out);
       });
     }},
    {"gather", false,
     [](memory_of_outputs) {
       return into_matrix(given().n(), width, [](const here_context& ctx, matrix_view<float> out, index_t&) {
         return gather(ctx, as_table(given().table()), given().ids, out);
       });
     }},
    {"gather: a table in parts", true,
     [](memory_of_outputs) {
       auto dealt = std::make_shared<partitioned_ids<>>(std::pmr::new_delete_resource());
       REQUIRE(partition(inline_executor{}, given().ids, rows, 2, partition_strategy::mod, *dealt).ok());
       return into_matrix(given().n(), width, [=](const here_context& ctx, matrix_view<float> out, index_t&) {
         return gather(ctx, in_two_parts().views, *dealt, out);
       });
     }},
    {"combine", true,
     [](memory_of_outputs) {
       return into_matrix(bags, width, [](const here_context& ctx, matrix_view<float> out, index_t&) {
         return combine(ctx, given().table(), given().batch(), combiner::sqrtn, out);
       });
     }},
    {"update", true,
     [](memory_of_outputs) {
       return into_table<f32_rows>([](const here_context& ctx, auto& tables, index_t&) {
         return update(ctx, tables[0].view(), given().batch(), combiner::mean, given().of_out(),
                       rowwise_adagrad{});
       });
     }},
    {"update: skip, counted; a default row; max_norm", true,
     [](memory_of_outputs) {
       return into_table<f32_rows>([](const here_context& ctx, auto& tables, index_t& skipped) {
         return update(ctx, tables[0].view(), given().with_invalid(),
                       pooling{combiner::sum, bounds::skip(skipped), empty_bag::default_row{4}, max_norm{1}},
                       given().of_out(), rowwise_adagrad{});
       });
     }},
    {"feature_group: update: large and small tables", true,
     [](memory_of_outputs) {
       return into_table<f32_rows>(
           [](const here_context& ctx, auto& tables, index_t& skipped) {
             features_of_tables features(tables, skipped);
             return update(ctx, features.group, features.batches,
                           matrix_view<const float>(given().values.data(), 4, 5 * width), rowwise_adagrad{});
           },
           4);
     }},
    {"update: resolved rows", true,
     [](memory_of_outputs memory) {
       auto all = std::make_shared<resolved_table>(memory);
       return verb_call{[=](const here_context& ctx) {
                          return update(ctx, *all->resolved, given().of_out(), rowwise_adagrad{});
                        },
                        [=] { return all->written(); }};
     }},
    {"row_gradients: resolved rows", true,
     [](memory_of_outputs memory) {
       auto all = std::make_shared<resolved_table>(memory);
       return into_owner<sparse_gradient>(memory, [=](const here_context& ctx, auto& out, auto&, index_t&) {
         return row_gradients(ctx, *all->resolved, given().of_out(), out);
       });
     }},
    {"lookup: resolved features", true,
     [](memory_of_outputs memory) {
       auto all = std::make_shared<resolved_group>(memory);
       return into_matrix(4, 5 * width, [=](const here_context& ctx, matrix_view<float> out, index_t&) {
         return lookup(ctx, *all->resolved, out);
       });
     }},
    {"update: resolved features", true,
     [](memory_of_outputs memory) {
       auto all = std::make_shared<resolved_group>(memory);
       return verb_call{[=](const here_context& ctx) {
                          return update(ctx, *all->resolved,
                                        matrix_view<const float>(given().values.data(), 4, 5 * width),
                                        rowwise_adagrad{});
                        },
                        [=] { return all->written(); }};
     }},
    {"row_gradients", true,
     [](memory_of_outputs memory) {
       return into_owner<sparse_gradient>(
           memory, [](const here_context& ctx, auto& out, auto&, index_t& skipped) {
             return row_gradients(ctx, rows, given().with_invalid(),
                                  pooling{combiner::mean, bounds::skip(skipped)}, given().of_out(), out);
           });
     }},
    {"row_gradients over slots", true,
     [](memory_of_outputs) {
       auto counts = std::make_shared<std::vector<std::int64_t>>(static_cast<std::size_t>(rows));
       for (const std::int64_t id : given().ids) ++(*counts)[static_cast<std::size_t>(id)];
       return into_matrix(rows, width, [=](const here_context& ctx, matrix_view<float> out, index_t&) {
         return row_gradients(ctx, *counts, given().batch(), combiner::mean, given().of_out(), out);
       });
     }},
    {"weight_gradients", false,
     [](memory_of_outputs) {
       return into_matrix(1, given().n(), [](const here_context& ctx, matrix_view<float> out, index_t&) {
         return weight_gradients(
             ctx, as_table(given().table()), given().batch(), combiner::mean, given().of_out(),
             std::span<float>(out.data_handle(), static_cast<std::size_t>(out.extent(1))));
       });
     }},
    {"unique: any ids", true,
     [](memory_of_outputs memory) {
       return into_owner<unique_ids<>>(memory, [](const here_context& ctx, auto& out, auto&, index_t&) {
         return unique(ctx, given().wide, out);
       });
     }},
    {"unique: small ids", true,
     [](memory_of_outputs memory) {
       return into_owner<unique_ids<std::int64_t, std::int32_t>>(
           memory,
           [](const here_context& ctx, auto& out, auto&, index_t&) { return unique(ctx, given().ids, out); });
     }},
    {"partition_unique", true,
     [](memory_of_outputs memory) {
       return into_owner<unique_parts<>>(memory, [](const here_context& ctx, auto& out, auto&, index_t&) {
         return partition_unique(ctx, given().wide, owner_by_modulo(3), out);
       });
     }},
    {"dedup_rows", true,
     [](memory_of_outputs memory) {
       return into_owner<unique_rows<>>(memory, [](const here_context& ctx, auto& out, auto&, index_t&) {
         return dedup_rows(ctx, matrix_view<const std::int64_t>(given().ids.data(), given().n() / 2, 2), out);
       });
     }},
    {"gather_rows", false,
     [](memory_of_outputs) {
       return into_matrix(given().n(), width, [](const here_context& ctx, matrix_view<float> out, index_t&) {
         return gather_rows(ctx, given().table(), given().ids, out);
       });
     }},
    {"partition", true,
     [](memory_of_outputs memory) {
       return into_owner<partitioned_ids<>>(memory, [](const here_context& ctx, auto& out, auto&,
                                                       index_t& skipped) {
         return partition(ctx, given().invalid, rows, 3, partition_strategy::div, bounds::skip(skipped), out);
       });
     }},
    {"prune_invalid: bags", true,
     [](memory_of_outputs memory) {
       return into_owner<jagged_batch<>>(
           memory, [](const here_context& ctx, auto& out, auto&, index_t& dropped) {
             return prune_invalid(ctx, given().with_invalid(), prune_rule::by_id, out, dropped);
           });
     }},
    {"prune_invalid: entries", true,
     [](memory_of_outputs memory) {
       return into_owner<jagged_batch<>>(memory, [](const here_context& ctx, auto& out, auto&,
                                                    index_t& dropped) {
         return prune_invalid(ctx, given().entries(false, false), prune_rule::by_id_and_weight, out, dropped);
       });
     }},
    {"fill_empty_bags", true,
     [](memory_of_outputs memory) {
       return into_owner<jagged_batch<>>(memory,
                                         [](const here_context& ctx, auto& out, auto& empty, index_t&) {
                                           return fill_empty_bags(ctx, given().batch(), 5, out, empty);
                                         });
     }},
    {"to_jagged: entries in any order", true,
     [](memory_of_outputs memory) {
       return into_owner<jagged_batch<>>(memory, [](const here_context& ctx, auto& out, auto&, index_t&) {
         return to_jagged(ctx, given().entries(false), out);
       });
     }},
    {"to_jagged: entries in order", true,
     [](memory_of_outputs memory) {
       return into_owner<jagged_batch<>>(memory, [](const here_context& ctx, auto& out, auto&, index_t&) {
         return to_jagged(ctx, given().entries(true), out);
       });
     }},
    {"unique: memory of the caller", true,
     [](memory_of_outputs) {
       using numbers = std::vector<std::int64_t>;
       auto to = std::make_shared<std::vector<numbers>>(4, numbers(given().ids.size(), -7));
       return verb_call{[=](const here_context& ctx) {
                          return unique(ctx, given().wide,
                                        unique_out<>{(*to)[0], (*to)[1], (*to)[2], (*to)[3]});
                        },
                        [=] { return show_all((*to)[0], (*to)[1], (*to)[2], (*to)[3]); }};
     }},
    {"partition_unique: memory of the caller", true,
     [](memory_of_outputs) {
       using numbers = std::vector<std::int64_t>;
       auto to = std::make_shared<std::vector<numbers>>(4, numbers(given().ids.size(), -7));
       return verb_call{[=](const here_context& ctx) {
                          return partition_unique(ctx, given().wide, owner_by_modulo(3),
                                                  unique_parts_out<>{(*to)[0], array_view((*to)[1].data(), 4),
                                                                     (*to)[2], (*to)[3]});
                        },
                        [=] { return show_all((*to)[0], (*to)[1], (*to)[2], (*to)[3]); }};
     }},
    {"partition: memory of the caller", true,
     [](memory_of_outputs) {
       using numbers = std::vector<std::int64_t>;
       auto to = std::make_shared<std::vector<numbers>>(2, numbers(given().ids.size(), -7));
       auto part = std::make_shared<std::vector<std::int32_t>>(given().ids.size(), -7);
       auto offsets = std::make_shared<numbers>(4, -7);
       return verb_call{[=](const here_context& ctx) {
                          return partition(ctx, given().ids, rows, 3, partition_strategy::div, bounds::check,
                                           partition_out<>{*part, (*to)[0], *offsets, (*to)[1]});
                        },
                        [=] { return show_all(*part, (*to)[0], *offsets, (*to)[1]); }};
     }},
    {"prune_invalid: bags, memory of the caller", false,
     [](memory_of_outputs) {
       return into_given_bags([](const here_context& ctx, const auto& out, auto) {
         return prune_invalid(ctx, given().with_invalid(), prune_rule::by_id, out);
       });
     }},
    {"prune_invalid: entries, memory of the caller", true,
     [](memory_of_outputs) {
       return into_given_bags([](const here_context& ctx, const auto& out, auto) {
         return prune_invalid(ctx, given().entries(true, false), prune_rule::by_id, out);
       });
     }},
    {"fill_empty_bags: memory of the caller", false,
     [](memory_of_outputs) {
       return into_given_bags([](const here_context& ctx, const auto& out, auto empty) {
         return fill_empty_bags(ctx, given().batch(), 5, out, empty);
       });
     }},
    {"to_jagged: entries in any order, memory of the caller", true,
     [](memory_of_outputs) {
       return into_given_bags([](const here_context& ctx, const auto& out, auto) {
         return to_jagged(ctx, given().entries(false), out);
       });
     }},
    {"to_jagged: entries in order, memory of the caller", false,
     [](memory_of_outputs) {
       return into_given_bags([](const here_context& ctx, const auto& out, auto) {
         return to_jagged(ctx, given().entries(true), out);
       });
     }},
    {"quantize", false,
     [](memory_of_outputs) {
       return into_table<int8_rows>([](const here_context& ctx, auto& tables, index_t&) {
         return quantize(ctx, given().table(), tables[0].view());
       });
     }},
    {"dequantize", false,
     [](memory_of_outputs) {
       return into_matrix(rows, width, [](const here_context& ctx, matrix_view<float> out, index_t&) {
         return dequantize(ctx, as_table(given().table()), out);
       });
     }},
    {"row_select", false,
     [](memory_of_outputs) {
       return into_matrix(bags, width, [](const here_context& ctx, matrix_view<float> out, index_t&) {
         const std::vector<std::uint8_t> cond(static_cast<std::size_t>(bags), 1);
         return row_select(ctx, cond, given().of_out(), given().of_out(), out);
       });
     }},
    {"apply_rows", false,
     [](memory_of_outputs) {
       return into_matrix(bags, width, [](const here_context& ctx, matrix_view<float> out, index_t&) {
         return apply_rows(ctx, given().of_out(), sgd{}, out, matrix_view<float>());
       });
     }},
    {"global_norm", true,
     [](memory_of_outputs) {
       auto norm = std::make_shared<std::vector<double>>(1, 3.0);
       return verb_call{[=](const here_context& ctx) {
                          const std::vector<matrix_view<const float>> all{given().of_out(), given().table()};
                          return global_norm(ctx, all, norm->front());
                        },
                        [=] { return show_all(*norm); }};
     }},
    {"dense_table::initialize", true,
     [](memory_of_outputs) {
       return into_table<bf16_rows>([](const here_context& ctx, auto& tables, index_t&) {
         try {
           tables[0].initialize(ctx, row_init::uniform{.seed = 3});
         } catch (const error& refused) {
           return status(refused.code(), "initialize");
         }
         return status{};
       });
     }},
};

/// What a verb writes when no memory is refused.
std::string written_by(const verb& which, executor_ref executor) {
  std::pmr::unsynchronized_pool_resource memory(std::pmr::new_delete_resource());
  const verb_call call = which.make(&memory);
  here_context ctx(executor);
  ctx.memory = &memory;
  const status s = call.run(ctx);
  CHECK_MESSAGE(s.ok(), s.message());
  return call.written();
}

/// The first allocation that a verb may be refused without a trace: runs it with 0, 1, 2 ... allocations
/// granted, then again with all of them, and says what is wrong at the first number where something is.
std::string refusal_fault(const verb& which, executor_ref executor) {
  const std::string expected = written_by(which, executor);
  for (long granted = 0; granted < 100; ++granted) {
    allowance shared;
    refusing_resource scratch(shared), outputs(shared);
    const verb_call call = which.make(&outputs);
    const std::string before = call.written();
    here_context ctx(executor);
    ctx.memory = &scratch;
    const std::string at =
        std::string(which.name) + ", " + std::to_string(granted) + " allocations granted: ";
    shared.left = granted;
    status s;
    {
      const no_default_resource none;
      try {
        s = call.run(ctx);
      } catch (const std::bad_alloc&) {
        return at + "std::bad_alloc leaves the verb" +
               (call.written() == before ? "" : ", outputs are changed");
      }
    }
    shared.left = allowance::unlimited;
    if (scratch.held != 0) return at + "scratch is not given back";
    if (s.ok()) {
      if (shared.refused > 0) return at + "ok, although memory was refused";
      if (call.written() == before) return at + "ok, and nothing is written";
      if (which.allocates != (granted > 0)) return at + "another need of memory than the table of verbs says";
      return {};
    }
    if (s.code() != errc::out_of_memory) return at + s.message();
    if (shared.refused == 0) return at + "out of memory, although nothing was refused";
    if (call.written() != before) return at + "out of memory, but outputs are changed";
    s = call.run(ctx);
    if (!s.ok()) return at + "called again: " + s.message();
    if (call.written() != expected) return at + "called again, it writes something else";
  }
  return std::string(which.name) + ": no end of allocations";
}

}  // namespace

TEST_CASE("every verb: memory refused at any allocation is a status, and nothing is written") {
  inline_executor here;
  thread_pool pool(3);
  for (const verb& which : every_verb) {
    CHECK(refusal_fault(which, here) == "");
    CHECK(refusal_fault(which, pool) == "");
  }
}

TEST_CASE("every verb: what is tested catches one that writes first, one that throws, one that keeps half") {
  const verb writes_first{"writes first", true, [](memory_of_outputs memory) {
                            return into_owner<jagged_batch<>>(
                                memory, [](const here_context&, auto& out, auto&, index_t&) {
                                  return detail::or_out_of_memory([&]() -> status {
                                    out.ids.resize(100);
                                    out.weights.resize(100);
                                    return {};
                                  });
                                });
                          }};
  const verb throws{"throws", true, [](memory_of_outputs memory) {
                      return into_owner<jagged_batch<>>(memory,
                                                        [](const here_context&, auto& out, auto&, index_t&) {
                                                          out.ids.resize(100);
                                                          return status{};
                                                        });
                    }};
  const verb keeps_half{"keeps half", true, [](memory_of_outputs memory) {
                          auto kept = std::make_shared<std::pmr::vector<index_t>>(memory);
                          return into_owner<jagged_batch<>>(
                              memory, [=](const here_context& ctx, auto& out, auto&, index_t&) {
                                return detail::or_out_of_memory([&]() -> status {
                                  const bool made = !kept->empty();
                                  if (!made) kept->resize(5, 1);
                                  const detail::scratch_block scratch(ctx.memory, 64);
                                  if (!made) kept->at(3) = 3;
                                  out.ids[0] = kept->at(3);
                                  return {};
                                });
                              });
                        }};
  inline_executor here;
  CHECK(refusal_fault(keeps_half, here) ==
        "keeps half, 1 allocations granted: called again, it writes something else");
  CHECK(refusal_fault(writes_first, here) ==
        "writes first, 1 allocations granted: out of memory, but outputs are changed");
  CHECK(refusal_fault(throws, here) == "throws, 0 allocations granted: std::bad_alloc leaves the verb");
}

TEST_CASE("every verb: memory is asked for by the caller's thread, and in no parallel body") {
  marking_executor marking;
  thread_pool pool(3);
  for (const verb& which : every_verb) {
    INFO(std::string(which.name));
    for (const bool on_threads : {false, true}) {
      watching_resource memory;
      executor_ref executor = on_threads ? executor_ref(pool) : executor_ref(marking);
      here_context ctx(executor);
      ctx.memory = &memory;
      const verb_call call = which.make(&memory);
      const int before = memory.allocations;
      const no_default_resource none;
      const status s = call.run(ctx);
      CHECK_MESSAGE(s.ok(), s.message());
      CHECK(memory.misplaced == 0);
      CHECK((memory.allocations > before) == which.allocates);
    }
  }
  watching_resource caught;  // the watch sees a body that allocates
  marking.parallel_for(1, 1, [&](index_t, index_t, int) { caught.deallocate(caught.allocate(8), 8); });
  CHECK(caught.misplaced == 2);
}

// ---- outputs that own inputs --------------------------------------------------------------------

namespace {

struct bytes_of_input {
  const char* name;
  const void* data;
  std::size_t bytes;
};
template <class T>
bytes_of_input input(const char* name, const std::vector<T>& values) {
  return {name, values.data(), values.size() * sizeof(T)};
}

/// A verb with an owner for its output: its inputs as arrays, and the call with these arrays wherever they
/// lie.
template <class Out, class Run>
void check_ownership(const char* name, const std::vector<bytes_of_input>& arrays, Run run) {
  INFO(std::string(name));
  constexpr std::size_t room = 64;  // elements of every array of out
  const auto prepared = [](std::pmr::memory_resource* memory) {
    auto out = std::make_unique<Out>(memory);
    std::apply(
        [](const auto&... array) {
          (const_cast<std::remove_cvref_t<decltype(array)>&>(array).reserve(room), ...);
          (const_cast<std::remove_cvref_t<decltype(array)>&>(array).assign(2, 1), ...);
        },
        detail::arrays_of(*out));
    return out;
  };
  std::vector<void*> as_given;
  for (const bytes_of_input& one : arrays) as_given.push_back(const_cast<void*>(one.data));
  apart_resource apart;
  const auto expected = prepared(&apart);
  REQUIRE(run(as_given, *expected).ok());

  const std::size_t owned = std::tuple_size_v<decltype(detail::arrays_of(*expected))>;
  enum place { at_begin, in_capacity, over_begin, over_end, before, behind };
  for (std::size_t a = 0; a < arrays.size(); ++a) {
    for (std::size_t o = 0; o < owned; ++o) {
      for (const place where : {at_begin, in_capacity, over_begin, over_end, before, behind}) {
        INFO(std::string(arrays[a].name));
        CAPTURE(o);
        CAPTURE(static_cast<int>(where));
        const auto out = prepared(&apart);
        std::byte* first = nullptr;
        std::size_t bytes = 0;
        std::apply(
            [&](const auto&... array) {
              std::size_t i = 0;
              ((i++ == o ? (first = static_cast<std::byte*>(static_cast<void*>(
                                const_cast<std::remove_cvref_t<decltype(array[0])>*>(array.data()))),
                            bytes = array.capacity() * sizeof(array[0]), 0)
                         : 0),
               ...);
            },
            detail::arrays_of(*out));
        const auto need = static_cast<std::ptrdiff_t>(arrays[a].bytes);
        const auto end = static_cast<std::ptrdiff_t>(bytes);
        REQUIRE(need <= 256);
        REQUIRE(need >= 8);
        const std::ptrdiff_t offset = where == at_begin      ? 0
                                      : where == in_capacity ? end - 256
                                      : where == over_begin  ? 8 - (need + 7) / 8 * 8
                                      : where == over_end    ? end - 8
                                      : where == before      ? -(need + 7) / 8 * 8
                                                             : end;
        std::memcpy(first + offset, arrays[a].data, arrays[a].bytes);
        auto placed = as_given;
        placed[a] = first + offset;
        const std::string was = show_owner(*out);
        const status s = run(placed, *out);
        if (where == before || where == behind) {
          CHECK_MESSAGE(s.ok(), s.message());
          CHECK(show_owner(*out) == show_owner(*expected));
        } else {
          CHECK(s.code() == errc::unsupported);
          CHECK(show_owner(*out) == was);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("every verb with an output that grows: an output that owns any byte of any input is refused") {
  const inline_executor here;
  const std::vector<std::int64_t> offsets{0, 1, 3, 3}, of_row{2, 0, 1, 0}, ids{5, -1, 6, 4}, good{5, 3, 6, 4};
  const std::vector<std::int64_t> indices{2, 0, 1};  // of two entries; the last column is not read
  const std::vector<float> weights{1, 2, 3, 4}, gradient{1, 2, 3, 4, 5, 6};
  const auto id = [](void* p) { return static_cast<const std::int64_t*>(p); };
  const auto real = [](void* p) { return static_cast<const float*>(p); };
  using places = const std::vector<void*>&;
  index_t dropped = 0;

  check_ownership<jagged_batch<>>(
      "to_jagged", {input("rows", of_row), input("ids", ids), input("weights", weights)},
      [&](places at, auto& out) {
        return to_jagged(here, coo_view<>(id(at[0]), id(at[1]), 4, 3, real(at[2])), out);
      });
  check_ownership<jagged_batch<>>(
      "to_jagged, indices of a tf.SparseTensor", {input("indices", indices)}, [&](places at, auto& out) {
        return to_jagged(here, coo_view<>::tensorflow(id(at[0]), ids.data(), 2, 3), out);
      });
  check_ownership<jagged_batch<>>(
      "prune_invalid, bags", {input("offsets", offsets), input("ids", ids), input("weights", weights)},
      [&](places at, auto& out) {
        return prune_invalid(here, jagged_view<>(id(at[0]), 3, id(at[1]), 4, real(at[2])), prune_rule::by_id,
                             out, dropped);
      });
  check_ownership<jagged_batch<>>(
      "prune_invalid, PyTorch's offsets", {input("offsets", offsets)}, [&](places at, auto& out) {
        return prune_invalid(here, jagged_view<>::torch(id(at[0]), 4, ids.data(), 4), prune_rule::by_id, out,
                             dropped);
      });
  check_ownership<jagged_batch<>>(
      "prune_invalid, bags of one size", {input("ids", ids)}, [&](places at, auto& out) {
        return prune_invalid(here, fixed_hotness_view<>(id(at[0]), 2, 2), prune_rule::by_id, out, dropped);
      });
  check_ownership<jagged_batch<>>(
      "prune_invalid, entries", {input("rows", of_row), input("ids", ids), input("weights", weights)},
      [&](places at, auto& out) {
        return prune_invalid(here, coo_view<>(id(at[0]), id(at[1]), 4, 3, real(at[2])), prune_rule::by_id,
                             out, dropped);
      });
  check_ownership<jagged_batch<>>(
      "fill_empty_bags", {input("offsets", offsets), input("ids", ids), input("weights", weights)},
      [&](places at, auto& out) {
        std::vector<std::uint8_t> empty(3);
        return fill_empty_bags(here, jagged_view<>(id(at[0]), 3, id(at[1]), 4, real(at[2])), 7, out, empty);
      });
  const std::vector<std::int64_t> no_borders(4);
  const std::vector<std::uint8_t> flags(8);
  check_ownership<jagged_batch<>>(
      "fill_empty_bags, no ids", {input("offsets", no_borders)}, [&](places at, auto& out) {
        std::vector<std::uint8_t> empty(3);
        return fill_empty_bags(here, jagged_view<>(id(at[0]), 3, nullptr, 0), 7, out, empty);
      });
  check_ownership<jagged_batch<>>(
      "fill_empty_bags, empty", {input("empty", flags)}, [&](places at, auto& out) {
        return fill_empty_bags(here, fixed_hotness_view<>(nullptr, 8, 0), 7, out,
                               std::span<std::uint8_t>(static_cast<std::uint8_t*>(at[0]), 8));
      });
  check_ownership<unique_ids<>>("unique", {input("ids", ids)}, [&](places at, auto& out) {
    return unique(here, std::span<const std::int64_t>(id(at[0]), 4), out);
  });
  check_ownership<unique_parts<>>("partition_unique", {input("ids", ids)}, [&](places at, auto& out) {
    return partition_unique(here, std::span<const std::int64_t>(id(at[0]), 4), owner_by_modulo(2), out);
  });
  check_ownership<partitioned_ids<>>("partition", {input("ids", good)}, [&](places at, auto& out) {
    return partition(here, std::span<const std::int64_t>(id(at[0]), 4), 9, 2, partition_strategy::mod, out);
  });
  check_ownership<unique_rows<>>("dedup_rows", {input("rows", good)}, [&](places at, auto& out) {
    return dedup_rows(here, matrix_view<const std::int64_t>(id(at[0]), 2, 2), out);
  });
  check_ownership<sparse_gradient>(
      "row_gradients",
      {input("offsets", offsets), input("ids", good), input("weights", weights), input("gradient", gradient)},
      [&](places at, auto& out) {
        return row_gradients(here, 9, jagged_view<>(id(at[0]), 3, id(at[1]), 4, real(at[2])), combiner::sum,
                             matrix_view<const float>(real(at[3]), 3, 2), out);
      });
}

TEST_CASE("every verb with an output that grows: a batch without memory owns nothing") {
  const inline_executor here;
  jagged_batch<> out;
  index_t dropped = 7;
  CHECK(to_jagged(here, coo_view<>(nullptr, nullptr, 0, 2), out).ok());
  CHECK(out.offsets == std::pmr::vector<index_t>{0, 0, 0});
  CHECK(prune_invalid(here, jagged_view<>(nullptr, 0, nullptr, 0), prune_rule::by_id, out, dropped).ok());
  CHECK(out.offsets == std::pmr::vector<index_t>{0});
  CHECK(dropped == 0);
  std::vector<std::uint8_t> empty(2);
  CHECK(fill_empty_bags(here, fixed_hotness_view<>(nullptr, 2, 0), 7, out, empty).ok());
  CHECK(out.ids == std::pmr::vector<std::int64_t>{7, 7});
  unique_ids<> different;
  CHECK(unique(here, std::span<const std::int64_t>(), different).ok());
  unique_parts<> of_owners;
  CHECK(partition_unique(here, std::span<const std::int64_t>(), owner_by_modulo(2), of_owners).ok());
  CHECK(of_owners.first == std::pmr::vector<std::int64_t>(3));
}
