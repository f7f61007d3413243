// A table of an EmbeddingBagCollection that grows: rows for any 64-bit key, each with its optimizer's state.
//
//   growing                 keys, rows and what chooses them, as tensors
//   growing_of<Format>      a growing_table; another one replaces it when contents are loaded
//   growing_file            its parts of a table file: "NAME" rows and state, "NAME, keys", "NAME, steps",
//                           "NAME, frequencies", and of counting Bloom filters "NAME, filter"
//
// Contents are in ascending order of the keys as signed numbers (growing_contents.hpp).
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/embedding/checkpoints/checkpoint_folder.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_reader.hpp>
#include <deeprec/embedding/files/named_rows.hpp>
#include <deeprec/embedding/files/named_table.hpp>
#include <deeprec/embedding/files/table_file.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/growing/admission.hpp>
#include <deeprec/embedding/growing/eviction.hpp>
#include <deeprec/embedding/growing/growing_options.hpp>
#include <deeprec/embedding/growing/growing_rows.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
#include <deeprec/embedding/lookup/gather.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/tables/quantize.hpp>
#include <deeprec/embedding/tables/quantized_rows.hpp>
#include <deeprec/embedding/tables/row_format.hpp>

#include "call.hpp"
#include "growing_contents.hpp"
#include "table.hpp"
#include "tensors.hpp"

namespace deeprec_torch {

/// A list of keys.
inline at::Tensor key_list(const at::Tensor& keys) {
  check_dimensions(keys, "keys", 1);
  return as_keys(keys, "keys");
}

/// What a table that grows holds, or what it will.
struct growing_contents {
  at::Tensor keys;         ///< int64 (R), all different
  at::Tensor rows;         ///< uint8 (R, bytes of a row)
  at::Tensor state;        ///< float32 (R, floats)
  at::Tensor steps;        ///< int64 (R), of the last update, or of the birth
  at::Tensor frequencies;  ///< int64 (R), positions that trained the row
  at::Tensor filter;       ///< uint8, the counters of a counting Bloom filter; (0) of others
};

/// The parts of a table file that one table is. To load, those that make its rows are read first.
class growing_file {
 public:
  virtual ~growing_file() = default;
  virtual void name_keys(std::vector<deeprec::named_table>& parts) = 0;
  virtual void name_parts(std::vector<deeprec::named_table>& parts) = 0;
  [[nodiscard]] static std::string seed_name(const std::string& table) { return table + ", seed"; }
};

/// A table that grows, whose format is not in its type.
class growing : public table {
 public:
  enum class policy : std::int64_t { step_ttl, l2_below, least_recent, least_frequent };

  using table::table;

  [[nodiscard]] virtual index_t size() const = 0;
  [[nodiscard]] virtual deeprec::growing_statistics statistics() const = 0;
  virtual void begin_step(std::int64_t step) = 0;
  /// int64 (R), in ascending order.
  [[nodiscard]] virtual at::Tensor keys() const = 0;
  [[nodiscard]] virtual growing_contents contents() const = 0;
  /// Replaces the table by another one; the group must be made again.
  virtual void restore(const growing_contents& from, std::uint64_t seed, float bound) = 0;
  /// The values that lookups read for keys: the default row where there is none.
  [[nodiscard]] virtual at::Tensor rows(const at::Tensor& keys) const = 0;
  /// Sets rows, and makes those that are absent; the optimizer's state stays.
  virtual void assign(const at::Tensor& keys, const at::Tensor& values) = 0;
  virtual index_t erase(const at::Tensor& keys) = 0;
  virtual index_t evict(policy which, std::int64_t count, float threshold) = 0;
  [[nodiscard]] virtual std::unique_ptr<growing_file> file_to_save() const = 0;
  /// With room for the keys that a file has.
  [[nodiscard]] virtual std::unique_ptr<growing_file> file_to_load(
      const deeprec::table_file_info& info) const = 0;
  /// Makes the rows, once the keys are read.
  virtual void make_rows(growing_file& loading) const = 0;
  /// Takes what was loaded; the group must be made again.
  virtual void adopt(growing_file& loaded) = 0;

  /// Adds the table to those that are saved, or that follow files. It stays while the caller keeps in_use().
  virtual deeprec::status add_to(deeprec::checkpoint_folder& saves) = 0;
  virtual deeprec::status add_to(deeprec::checkpoint_reader& files) = 0;
  [[nodiscard]] std::shared_ptr<const void> in_use() const { return use_; }

  [[nodiscard]] std::uint64_t seed() const { return seed_; }
  void set_seed(std::uint64_t seed) { seed_ = seed; }

 protected:
  /// Before the table is replaced by another one.
  void expect_no_use() const {
    TORCH_CHECK(
        use_.use_count() == 1, "deeprec: table ", config_.name,
        " must be in no Checkpoints and no Follower while its contents are replaced: load before they "
        "are made, or close() them");
  }

  std::uint64_t seed_ = 0;
  float bound_ = 0;

 private:
  std::shared_ptr<const char> use_ = std::make_shared<const char>();
};

template <class Format>
class growing_of final : public growing {
  using table_type = deeprec::growing_table<Format>;
  using rows_type = deeprec::growing_rows<Format>;

 public:
  growing_of(table_config config, index_t state_floats, const char* state_owner)
      : growing(std::move(config)), format_(format_with(config_.width, state_floats, state_owner)) {
    table_ = make();
  }

  template <class Optimizer, class Bags, class Out, class Rounding>
  void add_to(deeprec::feature_group<Optimizer, Bags, Out, Rounding>& group) {
    add_features(group, table_->rows());
  }

  void initialize(const first_values& values) override {
    table_ = make();
    seed_ = values.seed;
    bound_ = values.bound;
  }
  deeprec::status add_to(deeprec::checkpoint_folder& saves) override {
    return saves.add(config_.name, *table_);
  }
  deeprec::status add_to(deeprec::checkpoint_reader& files) override {
    return files.add(config_.name, *table_);
  }

  index_t size() const override { return table_->size(); }
  deeprec::growing_statistics statistics() const override { return table_->statistics(); }
  void begin_step(std::int64_t step) override { table_->begin_step(static_cast<std::uint64_t>(step)); }

  at::Tensor keys() const override {
    const std::vector<deeprec_packages::row_fact> all = facts();
    at::Tensor made = at::empty({static_cast<index_t>(all.size())}, at::TensorOptions(at::kLong));
    std::transform(all.begin(), all.end(), made.data_ptr<std::int64_t>(),
                   [](const deeprec_packages::row_fact& one) { return one.key; });
    return made;
  }
  growing_contents contents() const override {
    const auto pinned = table_->rows().guard();
    const std::vector<deeprec_packages::row_fact> all = facts();
    const auto count = static_cast<index_t>(all.size());
    const at::TensorOptions whole(at::kLong), bytes(at::kByte);
    growing_contents made{at::empty({count}, whole),
                          at::empty({count, format_.row_bytes()}, bytes),
                          at::empty({count, format_.state_floats()}, at::TensorOptions(at::kFloat)),
                          at::empty({count}, whole),
                          at::empty({count}, whole),
                          at::empty({0}, bytes)};
    auto* const rows = static_cast<std::byte*>(made.rows.data_ptr());
    auto* const state = made.state.data_ptr<float>();
    for (index_t k = 0; k < count; ++k) {
      const deeprec_packages::row_fact& one = all[static_cast<std::size_t>(k)];
      made.keys.data_ptr<std::int64_t>()[k] = one.key;
      made.steps.data_ptr<std::int64_t>()[k] = one.step;
      made.frequencies.data_ptr<std::int64_t>()[k] = one.frequency;
      copy_bytes(rows + k * format_.row_bytes(), one.row, format_.row_bytes());
      copy_bytes(state + k * format_.state_floats(), format_.state(const_cast<std::byte*>(one.row)),
                 state_bytes());
    }
    const std::span<std::byte> counters = filter_state(*table_);
    made.filter = at::empty({static_cast<index_t>(counters.size())}, bytes);
    copy_bytes(made.filter.data_ptr(), counters.data(), static_cast<index_t>(counters.size()));
    return made;
  }
  void restore(const growing_contents& from, std::uint64_t seed, float bound) override {
    expect_no_use();
    const at::Tensor keys = key_list(from.keys);
    const index_t count = keys.numel();
    const at::Tensor rows = part(from.rows, "weight", at::kByte, {count, format_.row_bytes()});
    const at::Tensor state = part(from.state, "state", at::kFloat, {count, format_.state_floats()});
    const at::Tensor steps = part(from.steps, "steps", at::kLong, {count});
    const at::Tensor frequencies = part(from.frequencies, "frequencies", at::kLong, {count});
    auto made = with_keys({keys.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(count)},
                          steps.const_data_ptr<std::int64_t>(), frequencies.const_data_ptr<std::int64_t>());
    const std::span<std::byte> counters = filter_state(*made);
    const at::Tensor filter = part(from.filter, "filter", at::kByte, {static_cast<index_t>(counters.size())});
    copy_bytes(counters.data(), filter.const_data_ptr(), filter.numel());
    const std::vector<const std::byte*> places = find(*made, keys);
    const auto* const bytes = static_cast<const std::byte*>(rows.const_data_ptr());
    for (index_t k = 0; k < count; ++k) {
      auto* const row = const_cast<std::byte*>(places[static_cast<std::size_t>(k)]);
      copy_bytes(row, bytes + k * format_.row_bytes(), format_.row_bytes());
      copy_bytes(format_.state(row), state.const_data_ptr<float>() + k * format_.state_floats(),
                 state_bytes());
    }
    table_ = std::move(made);
    seed_ = seed;
    bound_ = bound;
  }

  at::Tensor rows(const at::Tensor& keys) const override {
    const at::Tensor list = key_list(keys);
    at::Tensor out = at::empty({list.numel(), config_.width}, at::TensorOptions(at::kFloat));
    auto executor = threads();
    const auto ctx = call_on(executor);
    raise_on_fault(deeprec::gather(ctx, table_->rows(), keys_in(list), matrix<float>(out)));
    return out;
  }
  void assign(const at::Tensor& keys, const at::Tensor& values) override {
    const at::Tensor list = key_list(keys);
    check_values(values, list.numel());
    if (list.numel() == 0) return;
    const at::Tensor source = with_rows(values.to(at::kCPU, at::kFloat));
    auto executor = threads();
    const auto ctx = call_on(executor);
    deeprec::dense_table<Format> encoded(list.numel(), Format(config_.width));
    raise_on_fault(deeprec::quantize(ctx, matrix<const float>(source), encoded.view()));
    raise_on_fault(table_->rows().insert(keys_in(list).data(), list.numel()));
    const auto pinned = table_->rows().guard();
    const std::vector<const std::byte*> places = find(*table_, list);
    for (std::size_t k = 0; k < places.size(); ++k) {
      TORCH_CHECK_VALUE(places[k] != nullptr, "deeprec: the capacity of table ", config_.name,
                        " must be enough for the keys (key ", list.const_data_ptr<std::int64_t>()[k],
                        " has no row)");
      table_->rows().before_write(&places[k], 1);
      copy_bytes(const_cast<std::byte*>(places[k]),
                 encoded.view().data() + static_cast<index_t>(k) * encoded.format().stride_bytes(),
                 format_.row_bytes());
    }
  }
  index_t erase(const at::Tensor& keys) override {
    const at::Tensor list = key_list(keys);
    auto executor = threads();
    const auto ctx = call_on(executor);
    const auto erased = table_->erase(ctx, keys_in(list));
    raise_on_fault(erased);
    return erased.value();
  }
  index_t evict(policy which, std::int64_t count, float threshold) override {
    switch (which) {
      case policy::step_ttl:
        return sweep(deeprec::evict::step_ttl{static_cast<std::uint64_t>(count)});
      case policy::l2_below:
        return sweep(deeprec::evict::l2_below{threshold});
      case policy::least_recent:
        return sweep(deeprec::evict::least_recent{count});
      case policy::least_frequent:
        return sweep(deeprec::evict::least_frequent{count});
    }
    TORCH_CHECK_VALUE(false, "deeprec: a policy of evict must be one of the four (is ",
                      static_cast<std::int64_t>(which), ")");
  }

  std::unique_ptr<growing_file> file_to_save() const override {
    auto made = std::make_unique<file>();
    made->named = config_.name;
    for (const deeprec_packages::row_fact& one : facts()) {
      made->steps.push_back(one.step);
      made->frequencies.push_back(one.frequency);
    }
    made->open(*table_);
    return made;
  }
  std::unique_ptr<growing_file> file_to_load(const deeprec::table_file_info& info) const override {
    expect_no_use();
    auto made = std::make_unique<file>();
    made->named = config_.name;
    for (const deeprec::table_entry& entry : info.tables) {
      if (entry.name != config_.name + ", keys") continue;
      const auto count = static_cast<std::size_t>(entry.rows);
      made->keys.resize(count);
      made->steps.resize(count);
      made->frequencies.resize(count);
    }
    const auto seed = info.state.whole(growing_file::seed_name(config_.name));
    made->seed = seed ? static_cast<std::uint64_t>(*seed) : seed_;
    return made;
  }
  void make_rows(growing_file& loading) const override {
    auto& from = static_cast<file&>(loading);
    from.table = with_keys(from.keys, from.steps.data(), from.frequencies.data());
    from.open(*from.table);
  }
  void adopt(growing_file& loaded) override {
    auto& from = static_cast<file&>(loaded);
    from.rows.reset();  // with its guard
    table_ = std::move(from.table);
    seed_ = from.seed;
  }

 private:
  struct file final : growing_file {
    void open(table_type& of) {
      counters = filter_state(of);
      rows = std::make_unique<deeprec::named_rows<std::int64_t, rows_type>>(
          deeprec::name_rows<std::int64_t>(named, of.rows()));
    }
    void name_keys(std::vector<deeprec::named_table>& parts) override {
      parts.push_back(deeprec::name_keys(named + ", keys", std::span<std::int64_t>(keys)));
      name_facts(parts);
    }
    void name_parts(std::vector<deeprec::named_table>& parts) override {
      for (deeprec::named_table& one : rows->tables()) parts.push_back(std::move(one));
      name_facts(parts);
      if (counters.empty()) return;
      const auto words = static_cast<index_t>(counters.size() / 8);
      parts.push_back({{named + ", filter", "u64", words, 1, 8, 8, 0}, counters.data(), 0});
    }
    void name_facts(std::vector<deeprec::named_table>& parts) {
      parts.push_back(deeprec::name_keys(named + ", steps", std::span<std::int64_t>(steps)));
      parts.push_back(deeprec::name_keys(named + ", frequencies", std::span<std::int64_t>(frequencies)));
    }

    std::string named;
    std::vector<std::int64_t> keys;  // of a file that is loaded, as `table`
    std::vector<std::int64_t> steps, frequencies;
    std::span<std::byte> counters;
    std::uint64_t seed = 0;
    std::unique_ptr<table_type> table;
    std::unique_ptr<deeprec::named_rows<std::int64_t, rows_type>> rows;
  };

  static Format format_with(index_t width, index_t state_floats, const char* state_owner) {
    if constexpr (deeprec::Storage<typename Format::element>) {
      return Format(width, {.state_floats = state_floats, .state_owner = state_owner});
    } else {
      return Format(width);
    }
  }
  static void copy_bytes(void* to, const void* from, index_t count) {
    if (count > 0) std::memcpy(to, from, static_cast<std::size_t>(count));
  }
  static std::span<std::byte> filter_state(const table_type& of) {
    return of.filter() == nullptr ? std::span<std::byte>() : of.filter()->state();
  }
  [[nodiscard]] index_t state_bytes() const {
    return format_.state_floats() * static_cast<index_t>(sizeof(float));
  }
  [[nodiscard]] at::Tensor part(const at::Tensor& given, const char* name, at::ScalarType type,
                                at::IntArrayRef shape) const {
    TORCH_CHECK_VALUE(given.scalar_type() == type && given.sizes() == shape, "deeprec: ", name, " of table ",
                      config_.name, " must be ", at::toString(type), " ", shape, " (is ",
                      at::toString(given.scalar_type()), " ", given.sizes(), ")");
    return given.to(at::kCPU).contiguous();
  }

  // A table without rows, which this object outlives: first values are by its seed.
  [[nodiscard]] std::unique_ptr<table_type> make() const {
    const growth& grows = *config_.grows;
    return raising([&] {
      deeprec::growing_options options;
      if (grows.capacity) options.most_rows = *grows.capacity;
      options.full = grows.full;
      const auto first_values = [this](index_t key, float* values, index_t width) {
        deeprec::row_init::uniform{.seed = seed_, .bound = bound_}(key, values, width);
      };
      auto made = std::make_unique<table_type>(format_, first_values, options);
      using kind = growth::filter_kind;
      const auto occurrences = static_cast<std::uint32_t>(grows.occurrences);
      if (grows.filter == kind::counter)
        raise_on_fault(made->admit_by(deeprec::filters::counter{occurrences}));
      if (grows.filter == kind::counting_bloom)
        raise_on_fault(made->admit_by(
            deeprec::filters::counting_bloom{occurrences, grows.keys, grows.share, grows.filter_seed}));
      if (grows.filter == kind::probabilistic)
        raise_on_fault(made->admit_by(deeprec::filters::probabilistic{grows.share, grows.filter_seed}));
      raise_on_fault(made->default_row(grows.default_row));
      return made;
    });
  }
  // A table with rows of these keys, and what it knows of them: rows of one step at a time.
  [[nodiscard]] std::unique_ptr<table_type> with_keys(std::span<const std::int64_t> keys,
                                                      const std::int64_t* steps,
                                                      const std::int64_t* frequencies) const {
    constexpr std::int64_t most_frequent = (std::int64_t{1} << 24) - 1;
    const auto count = static_cast<index_t>(keys.size());
    const auto capacity = config_.grows->capacity.value_or(count);
    TORCH_CHECK_VALUE(count <= capacity, "deeprec: the capacity of table ", config_.name,
                      " must be at least ", count, ", the rows that are loaded (is ", capacity, ")");
    for (index_t k = 0; k < count; ++k) {
      TORCH_CHECK_VALUE(steps[k] >= 0, "deeprec: steps of table ", config_.name,
                        " must not be negative (step ", k, " is ", steps[k], ")");
      TORCH_CHECK_VALUE(frequencies[k] >= 0 && frequencies[k] <= most_frequent,
                        "deeprec: frequencies of table ", config_.name,
                        " must be from 0 to 2^24 - 1 (frequency ", k, " is ", frequencies[k], ")");
    }
    auto made = make();
    raise_on_fault(deeprec_packages::insert_keys(*made, keys, steps, frequencies));
    TORCH_CHECK_VALUE(made->size() == count, "deeprec: keys of table ", config_.name, " must differ (of ",
                      count, " only ", made->size(), " do)");
    return made;
  }
  [[nodiscard]] std::vector<deeprec_packages::row_fact> facts() const {
    auto all = deeprec_packages::facts_of(*table_);
    raise_on_fault(all);
    return std::move(all).value();
  }
  static std::vector<const std::byte*> find(table_type& in, const at::Tensor& list) {
    std::vector<const std::byte*> places(static_cast<std::size_t>(list.numel()));
    in.rows().find(keys_in(list).data(), list.numel(), places.data());
    return places;
  }
  template <class Policy>
  index_t sweep(const Policy& which) {
    auto executor = threads();
    const auto ctx = call_on(executor);
    const auto evicted = deeprec::evict_rows(ctx, *table_, which);
    raise_on_fault(evicted);
    return evicted.value();
  }

  Format format_;
  std::unique_ptr<table_type> table_;
};

extern template class growing_of<deeprec::f32_rows>;
extern template class growing_of<deeprec::f16_rows>;
extern template class growing_of<deeprec::bf16_rows>;
extern template class growing_of<deeprec::int8_rows>;
extern template class growing_of<deeprec::int4_rows>;

}  // namespace deeprec_torch
