// The limit of lookups of cold rows: the best of a sweep of gathers over the same ids, and of the peers that
// are here.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "lookup/baseline.hpp"
#include "support/fbgemm.hpp"
#include "support/roofline.hpp"
#include "support/uniform_batches.hpp"

namespace deeprec_bench {

using deeprec::index_t;

/// One way to read the rows of a batch.
struct row_reader {
  std::string name;
  std::function<void(const batch&)> read;
};

inline void read_all(const row_reader& reader, const std::vector<batch>& sets, std::size_t begin,
                     std::size_t end) {
  for (std::size_t s = begin; s < end; ++s) reader.read(sets[s]);
}

/// Gathers in both builds, over prefetch distances and kinds of prefetch; out: rows are copied there, null:
/// read only. stride: bytes from a row to the next, 0: row_bytes.
inline std::vector<row_reader> gathers(const char* table, index_t row_bytes, char* out, index_t stride = 0) {
  std::vector<row_reader> all;
  const index_t lines = (row_bytes + 63) / 64;
  const index_t alignment =
      (64 | reinterpret_cast<std::intptr_t>(table) | (stride == 0 ? row_bytes : stride));
  const bool once = (row_bytes + 127 - (alignment & -alignment)) / 64 == lines;
  for (const bool is_native : {false, true}) {
    for (const index_t in_flight : {0, 32, 64, 96, 128, 192, 256, 384}) {
      for (const int into : {3, 2, 0}) {
        if (in_flight == 0 && into != 3) continue;
        const gather_plan plan{table, row_bytes, nullptr, 0, in_flight / lines, into, out, stride, once};
        all.push_back({std::string("gather ") + (is_native ? "native" : "o2") + " " +
                           std::to_string(in_flight) + " lines ahead into " + std::to_string(into),
                       [plan, is_native](const batch& set) {
                         gather_plan here = plan;
                         here.ids = set.ids.data();
                         here.count = static_cast<std::int64_t>(set.ids.size());
                         benchmark::DoNotOptimize(is_native ? native::gather(here) : o2::gather(here));
                       }});
      }
    }
  }
  return all;
}

/// FBGEMM's pooled lookups at four prefetch distances, the second its callers' usual one; none without its
/// library. generate(width, distance) returns a kernel.
template <class Row, class Generate>
std::vector<row_reader> fbgemm_readers(const void* table, index_t rows, index_t width,
                                       const Generate& generate) {
  std::vector<row_reader> all;
  for (const int distance : {8, 16, 32, 64}) {
    const fbgemm::pooled_lookup<Row> kernel = generate(width, distance);
    if (!kernel) break;
    all.push_back({"FBGEMM " + std::to_string(distance) + " rows ahead", [=](const batch& set) {
                     static thread_local std::vector<float> out;
                     out.resize(static_cast<std::size_t>(set.view().bags() * width));
                     if (!kernel(set.view().bags(), static_cast<std::int64_t>(set.ids.size()), rows,
                                 static_cast<const Row*>(table), set.ids.data(), set.offsets.data(), nullptr,
                                 out.data())) {
                       std::abort();
                     }
                   }});
  }
  return all;
}

/// The same of rows of `Row`.
template <class Row>
std::vector<row_reader> fbgemm_readers(const void* table, index_t rows, index_t width) {
  return fbgemm_readers<Row>(table, rows, width, &fbgemm::generate_lookup<Row>);
}

/// The plain loop in both builds.
inline std::vector<row_reader> plain_readers(const void* table, index_t width) {
  std::vector<row_reader> all;
  for (const auto loop : {&o2::plain_sum, &native::plain_sum}) {
    all.push_back({loop == &o2::plain_sum ? "plain loop o2" : "plain loop native", [=](const batch& set) {
                     static thread_local std::vector<float> out;
                     out.resize(static_cast<std::size_t>(set.view().bags() * width));
                     loop(static_cast<const float*>(table), width,
                          {set.offsets.data(), set.ids.data(), set.view().bags()}, out.data());
                   }});
  }
  return all;
}

struct limit {
  row_reader reader;
  candidate best;  // its name, and seconds of one pass over all sets

  static limit of(const std::vector<row_reader>& readers, const std::vector<batch>& sets) {
    std::vector<candidate> all;
    for (const row_reader& reader : readers) {
      all.push_back({reader.name, [&reader, &sets] { read_all(reader, sets, 0, sets.size()); }});
    }
    const candidate best = fastest(all);
    const auto found = std::find_if(readers.begin(), readers.end(),
                                    [&](const row_reader& r) { return r.name == best.name; });
    return {*found, {best.name, {}, best.seconds}};
  }
};

inline double ids_of(const std::vector<batch>& sets) {
  double ids = 0;
  for (const batch& set : sets) ids += static_cast<double>(set.ids.size());
  return ids;
}

/// The provenance of suites that compare with FBGEMM.
inline bool says_fbgemm() {
  if (const std::string version = fbgemm::version(); !version.empty()) {
    benchmark::AddCustomContext("peer.FBGEMM", version);
  }
  return true;
}

template <class A, class B>
void append(std::vector<A>& to, const std::vector<B>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace deeprec_bench
