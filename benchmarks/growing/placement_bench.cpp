// Where rows begin inside granules of 2 MB, and how far they are apart: pooled lookups, hotness 20, cold rows
// in 3 GB of 2 MB pages, one thread, by addresses: their pace over that of rows from the start of a granule
// on, without gaps.
//
//   growing/placement/d:64/at:64/stride:256   rows of 256 bytes, the first one at byte 64
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <deeprec/core/jagged_view.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/memory/huge_page_resource.hpp>

#include "support/add.hpp"
#include "support/figures.hpp"
#include "support/machine.hpp"
#include "support/uniform_batches.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;

constexpr index_t granule = index_t{1} << 21;

struct placed_rows {
  using format_type = f32_rows;
  using space = host_space;
  using byte_type = const std::byte;

  f32_rows of;
  const std::byte* first;
  index_t granules, at, stride;

  [[nodiscard]] f32_rows format() const { return of; }
  [[nodiscard]] index_t per_granule() const { return (granule - at) / stride; }
  [[nodiscard]] index_t rows() const { return granules * per_granule(); }
  template <class Id>
  void resolve(const Id* ids, index_t n, const std::byte** addresses) const {
    const auto each = static_cast<std::uint32_t>(per_granule());
    for (index_t k = 0; k < n; ++k) {
      const auto id = static_cast<std::uint32_t>(ids[k]);
      addresses[k] = first + id / each * granule + at + id % each * stride;
    }
  }
};

void look_up(benchmark::State& state, const std::string& name, index_t width, index_t at, index_t stride) {
  const memory_plan plan = memory_plan::of(std::size_t{3} << 30);
  const index_t granules = static_cast<index_t>(plan.bytes) / granule;
  const auto bytes = static_cast<std::size_t>(granules * granule);
  std::pmr::memory_resource* const memory = huge_page_resource::shared();
  auto* const first = static_cast<std::byte*>(memory->allocate(bytes, static_cast<std::size_t>(granule)));
  std::memset(first, 0, bytes);
  const f32_rows format(width);
  const placed_rows here{format, first, granules, at, stride};
  const placed_rows aligned{format, first, granules, 0, format.stride_bytes()};
  const auto sets = uniform_batches(here.rows(), 20, stride);
  const index_t bags = sets[0].view().bags();
  std::vector<float> out(static_cast<std::size_t>(bags * width));
  inline_executor thread;
  const auto all = [&](const placed_rows& rows) {
    return [&] {
      for (const batch& set : sets) {
        if (!lookup(thread, rows, set.view(), combiner::sum, matrix_view<float>(out.data(), bags, width)))
          std::abort();
      }
    };
  };
  const double ids = static_cast<double>(sets.size()) * static_cast<double>(sets[0].ids.size());
  for (auto _ : state) {
    figures f(name);
    f.unfit(plan.unfit);
    f.sample([&] {
      const auto [ours, theirs] = f.pair("of_aligned", "", all(here), all(aligned));
      f.note("ns_per_id", ours / ids * 1e9);
      f.note("aligned_ns_per_id", theirs / ids * 1e9);
    });
    f.report(state);
  }
  memory->deallocate(first, bytes, static_cast<std::size_t>(granule));
}

const bool registered = [] {
  for (const index_t width : {16, 64, 128}) {
    const index_t row = width * index_t{sizeof(float)};
    const auto place = [&](index_t at, index_t stride) {
      add("growing/placement/d:" + std::to_string(width) + "/at:" + std::to_string(at) +
              "/stride:" + std::to_string(stride),
          [=](benchmark::State& state, const std::string& name) { look_up(state, name, width, at, stride); });
    };
    for (const index_t at : {16, 64, 128, 192}) place(at, row);
    for (const index_t more : {4, 64, 128}) place(0, row + more);
  }
  return true;
}();

}  // namespace
