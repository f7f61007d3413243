// 26 tables in one call: as many one-hot features, D = 16, tables of 24 to 4 M rows.
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include <type_traits>
#include <vector>

#include "support/bodies.hpp"
#include "support/ctr_features.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bodies_of;

template <int Batch, int Threads = 0>
struct grouped {
  static constexpr index_t width = 16, features = 26, parts = 65536 / Batch;
  static constexpr double items = double(Batch) * features;

  explicit grouped(const host& h)
      : ids(ids_of_features<Batch>(h, features, parts)),
        offsets(h.memory<std::int64_t>("offsets", Batch + 1,
                                       [](std::int64_t* to, index_t n) {
                                         for (index_t b = 0; b < n; ++b) to[b] = b;
                                       })),
        out(h.memory<float>("out", Batch * features * width)),
        turn(h, parts) {
    index_t all = 0;
    for (index_t t = 0; t < features; ++t) all += rows_of(t);
    char* const table = h.memory<char>("tables", all * width * 4, fill_rows);
    index_t before = 0;
    for (index_t t = 0; t < features; ++t) {
      group.add(const_table_view<f32_rows>(reinterpret_cast<const std::byte*>(table) + before * width * 4,
                                           rows_of(t), f32_rows(width)),
                combiner::sum);
      before += rows_of(t);
    }
    bags.resize(features);
  }

  void run() {
    const std::int64_t* const from = ids + turn.next() * features * Batch;
    for (index_t t = 0; t < features; ++t) {
      bags[static_cast<std::size_t>(t)] = {offsets, Batch, from + t * Batch, Batch};
    }
    must(lookup(executor, group, bags, matrix_view(out, index_t{Batch}, features * width)));
  }
  std::uint64_t checksum() {
    run();
    return checksum_of(out, Batch * features * width);
  }

  std::int64_t *ids, *offsets;
  float* out;
  turns turn;
  feature_group<> group;
  std::vector<jagged_view<>> bags;
  struct pool_of : thread_pool {
    pool_of() : thread_pool(Threads) {}
  };
  std::conditional_t<Threads == 0, inline_executor, pool_of> executor;
};

}  // namespace

DEEPREC_BODIES(body<grouped<16>>("table_group/batch:16", "row"),
               body<grouped<128>>("table_group/batch:128", "row"),
               body<grouped<2048>>("table_group/batch:2048", "row"),
               body<grouped<2048, 2>>("table_group/batch:2048/threads:2", "row", 2))
