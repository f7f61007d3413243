// libFuzzer: batches, policies and outputs of any kind, sound or not, through lookup, fused_lookup and the
// lookup of a feature_group. What is not sound must be refused with a fault that it has, and nothing written;
// what is must come out as a plain loop in double says.
//
// The first ten bytes choose sizes, verb and policies; then three for each slot: row or offset, id, weight.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <deeprec/core/coo_view.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/lookup/fused_lookup.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>

namespace {

using namespace deeprec;
using view = jagged_view<std::int64_t, std::int64_t>;

void require(bool holds) {
  if (!holds) std::abort();
}

/// Runs the pieces backwards, each under another worker number.
struct backwards_executor {
  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) const {
    for (index_t begin = n <= 0 ? -1 : (n - 1) / grain * grain; begin >= 0; begin -= grain) {
      body(begin, (std::min)(n, begin + grain), static_cast<int>(begin / grain % 3));
    }
  }
  [[nodiscard]] static constexpr int concurrency() noexcept { return 3; }
};
backwards_executor executor;

/// Bytes 0 .. 219 are small ids, the others negative ones and the ends of the type.
std::int64_t id_of(std::uint8_t byte) {
  using limits = std::numeric_limits<std::int64_t>;
  if (byte < 220) return byte % 40;
  if (byte < 240) return 220 - byte - 1;
  if (byte < 248) return limits::min() + byte % 2;
  return byte % 2 == 0 ? limits::max() : std::int64_t{1} << 32;
}

/// Exact in sums: eighths, and a few special ones.
float weight_of(std::uint8_t byte) {
  constexpr float special[] = {0.0F,
                               -0.0F,
                               -1.0F,
                               std::numeric_limits<float>::quiet_NaN(),
                               std::numeric_limits<float>::infinity(),
                               -std::numeric_limits<float>::infinity()};
  return byte < 6 ? special[byte] : static_cast<float>(byte) / 8.0F - 4.0F;
}

/// What the policies of a pooling say, as numbers.
struct meaning {
  enum combiners { sums, means, means_by_weight, roots, largest } combiner = sums;
  bool skips = false, prunes = false, keeps = false, adds = false;
  std::optional<std::int64_t> padding = std::nullopt, filling = std::nullopt;
  std::optional<float> cap = std::nullopt;
};

struct pooling_values {
  std::int64_t id;  // of padding or default row
  float cap;
  index_t* skipped;
};

/// Calls f(pooling, what it means) for the pooling of that number.
template <class F>
void with_pooling(int number, const pooling_values& with, const F& f) {
  switch (number) {
    case 0:
      return f(pooling{combiner::sum}, meaning{.combiner = meaning::sums});
    case 1:
      return f(pooling{combiner::mean, bounds::skip(*with.skipped), empty_bag::default_row{with.id}},
               meaning{.combiner = meaning::means, .skips = true, .filling = with.id});
    case 2:
      return f(pooling{combiner::sqrtn, padding::id{with.id}, empty_bag::keep},
               meaning{.combiner = meaning::roots, .keeps = true, .padding = with.id});
    case 3:
      return f(pooling{combiner::mean(combiner::by_weight), padding::prune, max_norm{with.cap}},
               meaning{.combiner = meaning::means_by_weight, .prunes = true, .cap = with.cap});
    default:
      return f(pooling{combiner::max, bounds::skip(*with.skipped), padding::id{with.id}, output::accumulate},
               meaning{.combiner = meaning::largest, .skips = true, .adds = true, .padding = with.id});
  }
}

/// The same for fused_lookup: three, since each takes seconds to build.
template <class F>
void with_fused_pooling(int number, const pooling_values& with, const F& f) {
  switch (number % 3) {
    case 0:
      return f(pooling{combiner::sum}, meaning{.combiner = meaning::sums, .prunes = true});
    case 1:
      return f(pooling{combiner::sqrtn, padding::id{with.id}, empty_bag::keep},
               meaning{.combiner = meaning::roots, .keeps = true, .padding = with.id});
    default:
      return f(pooling{combiner::mean(combiner::by_weight), padding::prune, max_norm{with.cap}},
               meaning{.combiner = meaning::means_by_weight, .prunes = true, .cap = with.cap});
  }
}

/// Memory of exactly the floats that a matrix has, gaps between rows included, and none behind the last row.
struct output {
  output(index_t rows, index_t columns, index_t gap)
      : floats(static_cast<std::size_t>(rows > 0 ? rows * (columns + gap) - gap : 0)),
        rows_(rows),
        columns_(columns),
        stride_(columns + gap) {
    for (std::size_t i = 0; i < floats.size(); ++i) floats[i] = before(i);
  }
  static float before(std::size_t i) { return static_cast<float>(i % 13) - 5.0F; }
  [[nodiscard]] matrix_view<float> to() { return {floats.data(), rows_, columns_, stride_}; }
  [[nodiscard]] bool untouched() const {
    for (std::size_t i = 0; i < floats.size(); ++i) {
      if (floats[i] != before(i)) return false;
    }
    return true;
  }
  [[nodiscard]] bool gaps_untouched() const {
    for (std::size_t i = 0; i < floats.size(); ++i) {
      if (static_cast<index_t>(i) % stride_ >= columns_ && floats[i] != before(i)) return false;
    }
    return true;
  }
  std::vector<float> floats;

 private:
  index_t rows_, columns_, stride_;
};

struct table {
  table(index_t rows, index_t width, std::uint8_t salt)
      : values(static_cast<std::size_t>(rows * width)), rows_(rows), width_(width) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>((i * 37 + salt * 11 + i / 7) % 65) / 16.0F - 2.0F;
    }
  }
  [[nodiscard]] auto rows_view() { return as_table(matrix_view<float>(values.data(), rows_, width_)); }
  [[nodiscard]] index_t rows() const { return rows_; }
  [[nodiscard]] index_t width() const { return width_; }
  [[nodiscard]] bool has(std::int64_t id) const { return id >= 0 && id < rows_; }
  [[nodiscard]] double at(std::int64_t id, index_t column) const {
    return static_cast<double>(values[static_cast<std::size_t>(id * width_ + column)]);
  }
  std::vector<float> values;

 private:
  index_t rows_, width_;
};

struct slot {
  std::int64_t id;
  float weight;
};
/// A batch as its bags; slots are numbered from `first`.
struct bag_lists {
  std::vector<std::vector<slot>> bags;
  bool weighted = false;
  index_t first = 0;
};

bool is_absent(const slot& s, const meaning& how, bool weighted) {
  if (how.padding == s.id) return true;
  if (!how.prunes) return false;
  return s.id < 0 || (weighted && how.combiner != meaning::sums && !(s.weight > 0.0F));
}
/// An id that is neither in the table nor stands for nothing. A weight does not make it one.
bool is_stray(const slot& s, const meaning& how, const table& from) {
  return !from.has(s.id) && how.padding != s.id && !(how.prunes && s.id < 0);
}

/// The faults that a call has; of several any may be told, but of slots only the first.
struct faults {
  struct fault {
    errc code;
    std::optional<fault_place> place;
  };
  void add(errc code, std::optional<fault_place> place = std::nullopt) { all.push_back({code, place}); }
  [[nodiscard]] bool allow(const status& got) const {
    if (all.empty()) return got.ok();
    return std::any_of(all.begin(), all.end(), [&](const fault& one) {
      return one.code == got.code() && (!one.place.has_value() || *one.place == got.place());
    });
  }
  std::vector<fault> all;
};

/// What is wrong with sound offsets' bags.
void add_slot_faults(const table& from, const bag_lists& batch, const meaning& how, bool writes,
                     faults& found) {
  if (how.combiner == meaning::largest && batch.weighted) found.add(errc::unsupported);
  if (how.cap.has_value() && !(*how.cap > 0.0F)) found.add(errc::invalid_value);
  if (how.filling.has_value() && !from.has(*how.filling)) {
    found.add(errc::id_out_of_range, fault_place{.value = *how.filling});
  }
  if (how.skips || !writes) return;
  index_t number = batch.first;
  for (std::size_t b = 0; b < batch.bags.size(); ++b) {
    for (const slot& s : batch.bags[b]) {
      const fault_place place{.bag = static_cast<index_t>(b), .position = number++, .value = s.id};
      if (is_stray(s, how, from)) return found.add(errc::id_out_of_range, place);
      if (is_absent(s, how, batch.weighted)) continue;
      if (batch.weighted && std::isnan(s.weight)) return found.add(errc::weight_is_nan, place);
    }
  }
}

index_t strays(const table& from, const bag_lists& batch, const meaning& how) {
  index_t count = 0;
  for (const auto& bag : batch.bags) {
    for (const slot& s : bag) count += is_stray(s, how, from) ? 1 : 0;
  }
  return count;
}

/// A pooled row in double, and what its error may be.
struct pooled {
  std::vector<double> value, bound;
  bool written = true;
};

pooled pool(const table& from, const std::vector<slot>& bag, bool weighted, const meaning& how) {
  const index_t width = from.width();
  pooled row{std::vector<double>(static_cast<std::size_t>(width)),
             std::vector<double>(static_cast<std::size_t>(width))};
  std::vector<slot> used;
  for (const slot& s : bag) {
    if (is_absent(s, how, weighted) || !from.has(s.id)) continue;
    used.push_back({s.id, weighted ? s.weight : 1.0F});
  }
  const bool empty = used.empty();
  if (empty && how.keeps) {
    row.written = false;
    return row;
  }
  if (empty && how.filling.has_value()) used.push_back({*how.filling, 1.0F});
  double weights = 0, squares = 0;
  for (const slot& s : used) {
    double norm = 0;
    for (index_t j = 0; j < width; ++j) norm += from.at(s.id, j) * from.at(s.id, j);
    norm = std::sqrt(norm);
    const double scale = how.cap.has_value() && norm > static_cast<double>(*how.cap)
                             ? static_cast<double>(*how.cap) / norm
                             : 1.0;
    const auto w = static_cast<double>(s.weight);
    weights += w;
    squares += w * w;
    for (std::size_t j = 0; j < row.value.size(); ++j) {
      const double x = from.at(s.id, static_cast<index_t>(j)) * scale;
      if (how.combiner == meaning::largest) {
        row.value[j] = &s == used.data() ? x : std::fmax(row.value[j], x);
      } else {
        row.value[j] += w * x;
        row.bound[j] += std::fabs(w * x);
      }
    }
  }
  const auto n = static_cast<double>(used.size());
  const double by = how.combiner == meaning::means             ? n
                    : how.combiner == meaning::means_by_weight ? weights
                    : how.combiner == meaning::roots           ? std::sqrt(squares)
                                                               : 1.0;
  for (std::size_t j = 0; j < row.value.size() && !used.empty(); ++j) {
    row.value[j] = by == 0 ? 0.0 : row.value[j] / by;
    row.bound[j] =
        by == 0 ? 0.0 : row.bound[j] / std::fabs(by) * (2 * n + 8 + static_cast<double>(width)) * 0x1p-24;
  }
  return row;
}

bool close(float got, double expected, double bound) {
  if (std::isnan(expected)) return std::isnan(got);
  if (std::isinf(expected)) return static_cast<double>(got) == expected;
  return std::fabs(static_cast<double>(got) - expected) <= bound;
}

/// Every row of `out` is what it should be. `first_column` of a group's feature.
void check_rows(const table& from, const bag_lists& batch, const meaning& how, const matrix_view<float>& out,
                const float* begin) {
  for (std::size_t b = 0; b < batch.bags.size(); ++b) {
    const pooled row = pool(from, batch.bags[b], batch.weighted, how);
    const float* const got = out.row(static_cast<index_t>(b));
    for (std::size_t j = 0; j < row.value.size(); ++j) {
      const float before = output::before(static_cast<std::size_t>(got - begin) + j);
      if (!row.written) {
        require(got[j] == before);
        continue;
      }
      const double old = how.adds ? static_cast<double>(before) : 0.0;
      const double expected = old + row.value[j];
      require(close(got[j], expected, row.bound[j] + (how.adds ? 0x1p-23 * (std::fabs(expected) + 8) : 0)));
    }
  }
}

struct choices {
  int verb;
  index_t bags;
  index_t rows;  // of tables
  index_t width;
  index_t gap;     // between rows of out
  index_t repeat;  // each slot so many times: long bags
  int policy;
  std::int64_t id;
  float cap;
  bool weighted, sound, ends_implied, in_order, other_width, other_rows;
  isa which;
};

context<backwards_executor> on(isa which) {
  context<backwards_executor> ctx(executor);
  ctx.instruction_set = which;
  return ctx;
}

/// Arrays of exactly the size of a batch, sound or not.
struct jagged_bytes {
  jagged_bytes(const choices& chosen, const std::vector<std::uint8_t>& bytes, std::size_t skew) {
    std::vector<std::int64_t> all;
    std::vector<float> w;
    const std::size_t n = bytes.size() / 3;
    for (std::size_t i = 0; i < n * static_cast<std::size_t>(chosen.repeat); ++i) {
      const std::size_t at = (i + skew) % n * 3;
      all.push_back(id_of(bytes[at + 1]));
      w.push_back(weight_of(bytes[at + 2]));
    }
    ids = all;
    if (chosen.weighted) weights = w;
    const auto count = static_cast<index_t>(ids.size());
    const index_t stored = chosen.bags + (chosen.ends_implied ? 0 : 1);
    for (index_t b = 0; b < stored; ++b) {
      const std::size_t at = n == 0 ? 0 : (static_cast<std::size_t>(b) + skew) % n * 3;
      const std::int64_t before = offsets.empty() ? 0 : offsets.back();
      const std::int64_t byte = n == 0 ? 0 : bytes[at];
      if (chosen.sound) {
        offsets.push_back((std::min<std::int64_t>)(count, before + byte % 5 * chosen.repeat));
      } else {
        offsets.push_back(byte < 250 ? byte : id_of(bytes[at]));
      }
    }
    ends_implied = chosen.ends_implied;
    bags = chosen.bags;
  }
  [[nodiscard]] view batch() const {
    const float* const w = weights.empty() ? nullptr : weights.data();
    const auto n = static_cast<index_t>(ids.size());
    return ends_implied ? view::torch(offsets.data(), bags, ids.data(), n, w)
                        : view(offsets.data(), bags, ids.data(), n, w);
  }
  [[nodiscard]] bool sound() const {
    for (std::size_t b = 0; b < offsets.size() && bags > 0; ++b) {
      if (offsets[b] < (b == 0 ? 0 : offsets[b - 1]) || offsets[b] > static_cast<std::int64_t>(ids.size()))
        return false;
    }
    return true;
  }
  [[nodiscard]] bag_lists lists() const {
    bag_lists made{.bags = std::vector<std::vector<slot>>(static_cast<std::size_t>(bags)),
                   .weighted = !weights.empty(),
                   .first = bags == 0 ? 0 : offsets[0]};
    for (std::size_t b = 0; b < made.bags.size(); ++b) {
      const std::size_t end = b + 1 < offsets.size() ? static_cast<std::size_t>(offsets[b + 1]) : ids.size();
      for (auto k = static_cast<std::size_t>(offsets[b]); k < end; ++k) {
        made.bags[b].push_back({ids[k], weights.empty() ? 1.0F : weights[k]});
      }
    }
    return made;
  }
  std::vector<std::int64_t> ids, offsets;
  std::vector<float> weights;
  index_t bags = 0;
  bool ends_implied = false;
};

/// The faults of one lookup of jagged bags.
faults faults_of(const table& from, const jagged_bytes& made, const meaning& how, const choices& chosen) {
  faults found;
  if (chosen.other_width || chosen.other_rows) found.add(errc::shape_mismatch);
  if (made.sound()) {
    add_slot_faults(from, made.lists(), how, chosen.bags > 0, found);
    return found;
  }
  const status wrong = made.batch().validate();
  require(!wrong.ok());
  found.add(wrong.code(), wrong.place());
  add_slot_faults(from, {.weighted = !made.weights.empty()}, how, false, found);
  return found;
}

void check_lookup(const choices& chosen, const std::vector<std::uint8_t>& bytes) {
  table from(chosen.rows, chosen.width, 1);
  const jagged_bytes made(chosen, bytes, 0);
  output out(chosen.bags + (chosen.other_rows ? 1 : 0), chosen.width + (chosen.other_width ? 1 : 0),
             chosen.gap);
  index_t skipped = 100;
  with_pooling(chosen.policy, {chosen.id, chosen.cap, &skipped}, [&](const auto& how, const meaning& means) {
    const status got = lookup(on(chosen.which), from.rows_view(), made.batch(), how, out.to());
    require(faults_of(from, made, means, chosen).allow(got));
    if (!got) return require(out.untouched() && skipped == 100);
    const bag_lists batch = made.lists();
    check_rows(from, batch, means, out.to(), out.floats.data());
    require(out.gaps_untouched() &&
            skipped == 100 + (means.skips && chosen.bags > 0 ? strays(from, batch, means) : 0));
  });
}

void check_fused(const choices& chosen, const std::vector<std::uint8_t>& bytes) {
  table from(chosen.rows, chosen.width, 2);
  std::vector<std::int32_t> rows;
  std::vector<std::int64_t> ids;
  std::vector<float> weights;
  for (std::size_t i = 0; i + 2 < bytes.size(); i += 3) {
    if (chosen.sound && chosen.bags == 0) break;
    rows.push_back(chosen.sound ? static_cast<std::int32_t>(bytes[i] % chosen.bags)
                                : static_cast<std::int32_t>(static_cast<std::int8_t>(bytes[i])));
    ids.push_back(id_of(bytes[i + 1]));
    weights.push_back(weight_of(bytes[i + 2]));
  }
  if (chosen.in_order) std::sort(rows.begin(), rows.end());
  if (chosen.ends_implied && chosen.bags == static_cast<index_t>(rows.size())) {  // a dense column
    for (std::size_t k = 0; k < rows.size(); ++k) rows[k] = static_cast<std::int32_t>(k);
  }
  const auto n = static_cast<index_t>(ids.size());
  const coo_view<std::int64_t, std::int32_t> entries(rows.data(), ids.data(), n, chosen.bags,
                                                     chosen.weighted ? weights.data() : nullptr);
  bag_lists batch{.bags = std::vector<std::vector<slot>>(static_cast<std::size_t>(chosen.bags)),
                  .weighted = chosen.weighted};
  faults found;
  if (chosen.other_width || chosen.other_rows) found.add(errc::shape_mismatch);
  bool rows_sound = true;
  for (std::size_t k = 0; k < rows.size() && rows_sound; ++k) {
    rows_sound = rows[k] >= 0 && rows[k] < chosen.bags;
    if (rows_sound) {
      batch.bags[static_cast<std::size_t>(rows[k])].push_back({ids[k], weights[k]});
    } else {
      found.add(errc::invalid_value);
      require(entries.validate().place().position == static_cast<index_t>(k));
    }
  }
  output out(chosen.bags + (chosen.other_rows ? 1 : 0), chosen.width + (chosen.other_width ? 1 : 0),
             chosen.gap);
  with_fused_pooling(
      chosen.policy, {chosen.id, chosen.cap, nullptr}, [&](const auto& how, const meaning& means) {
        add_slot_faults(from, batch, means, rows_sound && chosen.bags > 0, found);
        const status got = fused_lookup(on(chosen.which), from.rows_view(), entries, how, out.to());
        require(found.allow(got));
        if (!got) return require(out.untouched());
        check_rows(from, batch, means, out.to(), out.floats.data());
        require(out.gaps_untouched());
      });
}

void check_group(const choices& chosen, const std::vector<std::uint8_t>& bytes) {
  const index_t features = 1 + chosen.id % 4 * (chosen.id < 0 ? 0 : 1);
  feature_group<> group;
  std::vector<table> tables;
  std::vector<meaning> meanings;
  std::vector<jagged_bytes> batches;
  std::vector<index_t> skipped(static_cast<std::size_t>(features), 100);
  tables.reserve(static_cast<std::size_t>(features));
  for (index_t t = 0; t < features; ++t) {
    const auto number = static_cast<std::size_t>(t);
    tables.emplace_back((std::max<index_t>)(0, chosen.rows - 3 * t), 1 + (chosen.width + 5 * t) % 40,
                        number + 3);
    const std::int64_t id = chosen.id % 7 - (t == 2 ? 1 : 0);
    with_pooling((chosen.policy + static_cast<int>(t)) % 5, {id, chosen.cap, &skipped[number]},
                 [&](const auto& how, const meaning& means) {
                   group.add(tables.back().rows_view(), how);
                   meanings.push_back(means);
                 });
    choices mine = chosen;
    mine.weighted = chosen.weighted && meanings.back().combiner != meaning::largest;
    mine.sound = chosen.sound || t == 0;
    batches.emplace_back(mine, bytes, number);
  }
  std::vector<view> views;
  for (const jagged_bytes& batch : batches) views.push_back(batch.batch());
  output out(chosen.bags + (chosen.other_rows ? 1 : 0), group.total_width(), chosen.gap);
  const status got = lookup(on(chosen.which), group, views, out.to());
  bool sound = true;
  for (std::size_t t = 0; t < tables.size() && sound; ++t) {  // the smallest feature with a fault
    choices mine = chosen;
    mine.other_width = false;
    faults found = faults_of(tables[t], batches[t], meanings[t], mine);
    sound = found.all.empty();
    for (faults::fault& one : found.all) {
      if (one.place.has_value()) one.place->table = static_cast<index_t>(t);
    }
    if (!sound) require(got.place().table == static_cast<index_t>(t) && found.allow(got));
  }
  require(sound == got.ok());
  if (!got) {
    require(out.untouched());
    for (const index_t count : skipped) require(count == 100);
    return;
  }
  for (std::size_t t = 0; t < tables.size(); ++t) {
    const bag_lists batch = batches[t].lists();
    const matrix_view<float> all = out.to();
    float* const first =
        chosen.bags == 0 ? nullptr : all.data_handle() + group.offset(static_cast<index_t>(t));
    const matrix_view<float> mine(first, chosen.bags, tables[t].width(), all.stride(0));
    check_rows(tables[t], batch, meanings[t], mine, out.floats.data());
    require(skipped[t] ==
            100 + (meanings[t].skips && chosen.bags > 0 ? strays(tables[t], batch, meanings[t]) : 0));
  }
  require(out.gaps_untouched());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 10) return 0;
  constexpr index_t widths[] = {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 65};
  constexpr float caps[] = {1.0F,
                            0.25F,
                            3.5F,
                            100.0F,
                            0.0F,
                            -1.0F,
                            std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity()};
  const auto best = static_cast<unsigned>(best_isa());
  const choices chosen{.verb = data[0] % 3,
                       .bags = data[1] % 24,
                       .rows = data[2] % 40,
                       .width = widths[data[3] % 16],
                       .gap = data[3] / 64,
                       .repeat = data[4] < 240 ? 1 : 400,
                       .policy = data[5] % 5,
                       .id = id_of(data[6]),
                       .cap = caps[data[7] % 64 < 60 ? data[7] % 4 : data[7] % 8],
                       .weighted = (data[8] & 1) != 0,
                       .sound = (data[8] & 6) != 0,
                       .ends_implied = (data[8] & 8) != 0,
                       .in_order = (data[8] & 16) != 0,
                       .other_width = (data[8] & 0xe0) == 0xe0,
                       .other_rows = (data[8] & 0xe0) == 0xc0,
                       .which = static_cast<isa>(data[9] % (best + 1))};
  const std::vector<std::uint8_t> bytes(data + 10, data + size);
  switch (chosen.verb) {
    case 0:
      check_lookup(chosen, bytes);
      break;
    case 1:
      check_fused(chosen, bytes);
      break;
    default:
      check_group(chosen, bytes);
      break;
  }
  return 0;
}
