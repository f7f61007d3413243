// The different ids of batches: skewed ones as features have them, uniform ones of which each comes once, and
// small ones.
#include <deeprec/deeprec.hpp>  // in every commit; folders move

#include <span>

#include "support/bodies.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bodies_of;

enum class ids_are { skewed, uniform, small };

template <ids_are Kind, int Batch>
struct distinct {
  static constexpr index_t parts = 262144 / Batch;
  static constexpr double items = Batch;

  explicit distinct(const host& h)
      : ids(h.memory<std::int64_t>("ids", parts * Batch,
                                   [](std::int64_t* to, index_t n) {
                                     for (index_t k = 0; k < n; ++k) {
                                       const auto i = static_cast<std::uint64_t>(k);
                                       to[k] = Kind == ids_are::skewed ? draw_skewed(15, i, 10'000'000)
                                               : Kind == ids_are::uniform
                                                   ? draw_below(15, i, index_t{1} << 40)
                                                   : draw_below(15, i, 500);
                                     }
                                   })),
        turn(h, parts) {}
  void run() {
    must(unique(here, std::span<const std::int64_t>(ids + turn.next() * Batch, Batch), different));
  }
  std::uint64_t checksum() {
    run();
    const auto count = static_cast<index_t>(different.ids.size());
    return checksum_of(different.ids.data(), count) + checksum_of(different.inverse.data(), Batch) * 3 +
           checksum_of(different.counts.data(), count) * 5;
  }

  std::int64_t* ids;
  turns turn;
  inline_executor here;
  unique_ids<> different;
};

}  // namespace

DEEPREC_BODIES(body<distinct<ids_are::skewed, 2048>>("unique/skewed/batch:2048", "id"),
               body<distinct<ids_are::skewed, 8192>>("unique/skewed/batch:8192", "id"),
               body<distinct<ids_are::skewed, 65536>>("unique/skewed/batch:65536", "id"),
               body<distinct<ids_are::uniform, 8192>>("unique/uniform/batch:8192", "id"),
               body<distinct<ids_are::small, 8192>>("unique/small/batch:8192", "id"))
