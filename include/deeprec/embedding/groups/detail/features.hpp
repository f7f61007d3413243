// The type-erased features of a group, their resolved batches, and their poolings.
//
//   feature          table and pooling, registered once; makes a batch for each call
//   feature_batch    a resolution: examined, located, grouped
//   feature_pool     a pool_job over it, for one lookup
#pragma once

#include <cstddef>
#include <memory_resource>
#include <new>
#include <optional>
#include <type_traits>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/kernels/host/backward.hpp>
#include <deeprec/embedding/kernels/host/batch_groups.hpp>
#include <deeprec/embedding/kernels/host/batch_rows.hpp>
#include <deeprec/embedding/kernels/host/pool_job.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/embedding/kernels/host/resolution.hpp>
#include <deeprec/embedding/kernels/host/step_groups.hpp>
#include <deeprec/embedding/kernels/host/table_parts.hpp>
#include <deeprec/embedding/tables/row_source.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/support/first_fault.hpp>
#include <deeprec/support/scratch_block.hpp>
#include <deeprec/support/unit_flags.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

using erased_context = context<executor_ref>;

/// The bytes of an object in an erased_list.
template <class T>
constexpr std::size_t bytes_of_item() {
  constexpr std::size_t alignment = alignof(std::max_align_t);
  static_assert(alignof(T) <= alignment);
  return (sizeof(T) + alignment - 1) / alignment * alignment;
}

/// The pooling of a feature in one lookup; see pool_job. Has nothing to destroy.
class feature_pool {
 public:
  [[nodiscard]] virtual index_t scratch_bytes() const noexcept = 0;
  virtual void plan(const environment& given, scratch_block& scratch) = 0;
  // Known after plan():
  [[nodiscard]] bool has_close() const noexcept { return has_close_; }
  [[nodiscard]] index_t units() const noexcept { return units_; }
  [[nodiscard]] index_t grain() const noexcept { return grain_; }
  [[nodiscard]] index_t pieces() const noexcept { return pieces_; }
  [[nodiscard]] double ns() const noexcept { return ns_; }
  virtual void fetch(index_t begin) const noexcept = 0;
  virtual void pool(index_t begin, index_t end) noexcept = 0;
  virtual void close(const erased_context& ctx) = 0;

 protected:
  ~feature_pool() = default;
  bool has_close_ = false;
  index_t units_ = 0;
  index_t grain_ = 1;
  index_t pieces_ = 0;
  double ns_ = 0;
};

template <class Resolution, class Out, class = unit>
class feature_pool_of final : public feature_pool {
 public:
  feature_pool_of(const Resolution& rows, matrix_view<Out> out) : job_(rows, out) {}
  index_t scratch_bytes() const noexcept override { return job_.scratch_bytes(); }
  void plan(const environment& given, scratch_block& scratch) override {
    job_.plan(given, scratch);
    this->has_close_ = job_.has_close();
    this->units_ = job_.units();
    this->ns_ = job_.ns(*given.tuning);
    this->grain_ = grain_for(*given.tuning, this->units_, this->ns_);
    this->pieces_ = (this->units_ + this->grain_ - 1) / this->grain_;
  }
  void fetch(index_t begin) const noexcept override { job_.fetch(begin); }
  void pool(index_t begin, index_t end) noexcept override { job_.pool(begin, end); }
  void close(const erased_context& ctx) override { job_.close(ctx); }

 private:
  pool_job<Resolution, Out> job_;
};

/// The batch of a feature; see resolution.
template <class Out>
class feature_batch {
 public:
  virtual ~feature_batch() = default;
  virtual status open(bool admits) = 0;
  // Known after open():
  [[nodiscard]] bool examines() const noexcept { return examines_; }
  [[nodiscard]] index_t positions() const noexcept { return positions_; }
  [[nodiscard]] index_t addresses() const noexcept { return addresses_; }
  [[nodiscard]] bool admits() const noexcept { return admits_; }
  [[nodiscard]] virtual index_t grouped() const noexcept = 0;
  virtual void place_addresses(const std::byte** addresses) noexcept = 0;
  virtual void examine(isa which, index_t begin, index_t end) = 0;
  /// The parts of an admission: list_absent returns whether there are absent keys.
  virtual bool list_absent(std::pmr::memory_resource* memory) = 0;
  /// Whether the rows of its source never move: it keeps its guard, and is not examined again.
  [[nodiscard]] virtual bool is_stable() const noexcept = 0;
  /// Until release_found() a source that may erase rows keeps those that were found.
  virtual void hold_found() = 0;
  virtual void release_found() noexcept = 0;
  virtual void drop_guard() noexcept = 0;
  virtual status insert_absent(const erased_context& ctx) = 0;
  virtual void take_guard() = 0;
  virtual void end_admission(bool examined_again) = 0;
  /// Of the first find() that failed.
  [[nodiscard]] virtual status found() const = 0;
  /// Whether finish() has work.
  [[nodiscard]] bool has_finish() const noexcept { return fills_ || bad_.value() != first_position::none; }
  /// The fault of the smallest position, or of the default row.
  virtual status finish() = 0;

  [[nodiscard]] virtual status check_pool(matrix_view<Out> out) const = 0;
  virtual feature_pool* make_pool(void* where, matrix_view<Out> out) const = 0;

  virtual void add_to(batch_groups& groups, const erased_context& ctx) const = 0;
  virtual void add_to(backward_pass& pass, const erased_context& ctx,
                      matrix_view<const float> gradient) const = 0;
  /// Of direct tables.
  virtual void add_to(part_sizes& sizes, const table_part& part) const = 0;
  virtual void add_to(part_groups& groups, const table_part& part,
                      matrix_view<const float> gradient) const = 0;
  virtual void count_skipped() const = 0;
  virtual void count_skipped_once() noexcept = 0;

 protected:
  index_t positions_ = 0;
  index_t addresses_ = 0;
  first_position bad_;
  bool examines_ = false;
  bool admits_ = false;
  bool fills_ = false;
};

template <class Source, class Bags, class Pooling, class Out, class = unit>
class feature_batch_of final : public feature_batch<Out> {
  using resolution_type = resolution<Source, Bags, Pooling>;

 public:
  using pool_type = feature_pool_of<resolution_type, Out>;

  feature_batch_of(const Source& source, const Bags& bags, const Pooling& pooling)
      : rows_(source, bags, pooling) {}
  status open(bool admits) override {
    const status s = rows_.open(admits && AdmittingRowSource<Source, typename Bags::id_type>);
    this->positions_ = rows_.positions();
    this->addresses_ = rows_.addresses();
    this->examines_ = resolution_type::examines;
    this->admits_ = rows_.admits();
    this->fills_ = fills<Pooling>;
    return s;
  }
  index_t grouped() const noexcept override { return grouped_positions(rows_.bags(), rows_.pooling()); }
  void place_addresses(const std::byte** addresses) noexcept override { rows_.place_addresses(addresses); }
  void examine(isa which, index_t begin, index_t end) override {
    rows_.examine(which, begin, end, this->bad_);
  }
  bool list_absent(std::pmr::memory_resource* memory) override {
    if constexpr (resolution_type::is_keyed) {
      rows_.list_absent(absent_.emplace(memory));
      return !absent_->empty();
    }
    return false;
  }
  bool is_stable() const noexcept override { return resolution_type::keeps_guard; }
  void hold_found() override { held_.emplace(rows_.hold_found()); }
  void release_found() noexcept override { held_.reset(); }
  void drop_guard() noexcept override { rows_.drop_guard(); }
  status insert_absent([[maybe_unused]] const erased_context& ctx) override {
    if (!absent_ || absent_->empty()) return {};
    [[maybe_unused]] const auto count = static_cast<index_t>(absent_->size());
    if constexpr (resolution_type::keeps_guard) {
      places_.emplace(absent_->size(), absent_->get_allocator().resource());
      return rows_.source().insert(ctx, absent_->data(), count, places_->data());
    } else if constexpr (GrowingRowSource<Source, typename Bags::id_type>) {
      return rows_.source().insert(absent_->data(), count);
    }
    return {};
  }
  status found() const override { return rows_.found(); }
  void take_guard() override { rows_.take_guard(); }
  void end_admission(bool examined_again) override {
    release_found();
    if (places_) rows_.place_admitted(places_->data());
    if (examined_again) {
      rows_.end_admission();
    } else {
      rows_.judge_all(this->bad_);
    }
    this->admits_ = false;
  }
  status finish() override {
    if (const status s = rows_.fault(this->bad_); !s) return s;
    return rows_.finish();
  }
  status check_pool(matrix_view<Out> out) const override {
    return lookup_shapes(rows_.source().format().width(), rows_.bags(), rows_.pooling(), out);
  }
  feature_pool* make_pool(void* where, matrix_view<Out> out) const override {
    static_assert(std::is_trivially_destructible_v<pool_type>);
    return ::new (where) pool_type(rows_, out);
  }
  void add_to(batch_groups& groups, const erased_context& ctx) const override { groups.add(ctx, rows_); }
  void add_to(backward_pass& pass, const erased_context& ctx,
              matrix_view<const float> gradient) const override {
    pass.add(ctx, rows_, gradient);
  }
  void add_to(part_sizes& sizes, const table_part& part) const override {
    if constexpr (resolution_type::is_direct) sizes.add(rows_, part);
  }
  void add_to(part_groups& groups, const table_part& part, matrix_view<const float> gradient) const override {
    if constexpr (resolution_type::is_direct) groups.add(rows_, gradient, part);
  }
  void count_skipped() const override { rows_.count_skipped(); }
  void count_skipped_once() noexcept override { rows_.count_skipped_once(); }

 private:
  resolution_type rows_;
  std::optional<std::pmr::vector<typename Bags::id_type>> absent_;
  std::optional<std::pmr::vector<const std::byte*>> places_;  // of the absent keys' rows
  std::optional<decltype(std::declval<const resolution_type&>().hold_found())> held_;
};

/// Identifies the table of a feature. Features whose tables have one address share it.
struct feature_table {
  const void* address = nullptr;  // null: shared with no other feature
  batch_groups_size groups;       // without positions
  index_t width = 0;
  index_t stride = 0;
  float norm_cap = 0;            // max_norm of the lookups; 0: none
  const void* format = nullptr;  // identifies the row format, without RTTI

  [[nodiscard]] bool same_rows(const feature_table& other) const noexcept {
    return groups.rows == other.groups.rows && width == other.width && stride == other.stride &&
           norm_cap == other.norm_cap && format == other.format;
  }
};

/// Its address identifies a format.
template <class Format>
inline constexpr char name_of_format = 0;

template <class Source, class Pooling>
feature_table table_of(const Source& source, const Pooling& pooling) {
  using format_type = typename Source::format_type;
  feature_table table{.groups = groups_of_source(source),
                      .width = source.format().width(),
                      .stride = source.format().stride_bytes(),
                      .norm_cap = max_norm_of(pooling),
                      .format = &name_of_format<format_type>};
  if constexpr (DirectRowSource<Source>) {
    // A table without rows, or with rows of 0 bytes, is never the same as another.
    if (source.rows() > 0 && table.stride > 0) table.address = source.data();
  } else if constexpr (requires { source.identity(); }) {
    table.address = source.identity();
  }
  return table;
}

inline constexpr std::size_t no_feature = static_cast<std::size_t>(-1);

/// Sums over the features of a group.
struct group_sizes {
  std::size_t batches = 0;        // bytes of all feature_batches
  std::size_t pools = 0;          // bytes of all feature_pools
  bool stores_addresses = false;  // of any
};

/// A registered feature.
template <class Optimizer, class Bags, class Out, class Rounding>
class feature {
 public:
  feature(const feature_table& its_table, std::size_t bytes_of_batch, std::size_t bytes_of_pool, bool stores)
      : table(its_table), batch_bytes(bytes_of_batch), pool_bytes(bytes_of_pool), stores_addresses(stores) {}
  virtual ~feature() = default;
  /// Upper bounds of the scratch for addresses and long bags of a batch.
  [[nodiscard]] virtual index_t address_bytes(const Bags& bags) const noexcept = 0;
  [[nodiscard]] virtual index_t long_bag_bytes(const Bags& bags) const noexcept = 0;
  [[nodiscard]] virtual index_t grouped(const Bags& bags) const noexcept = 0;
  [[nodiscard]] virtual status check(const Bags& bags, matrix_view<Out> out) const = 0;
  [[nodiscard]] virtual status check_policies() const = 0;
  virtual feature_batch<Out>* make_batch(void* where, const Bags& bags) const = 0;
  /// Small batches of tables, without lists: checks a batch and prefetches its rows; pools one that was
  /// checked.
  [[nodiscard]] virtual status check_small(isa which, const Bags& bags, matrix_view<Out> out) const = 0;
  virtual void pool_small(const erased_context& ctx, const Bags& bags, matrix_view<Out> out) const = 0;
  /// The rows of up to chunk_positions positions, and those of more.
  virtual void step_short(const erased_context& ctx, const batch_groups& groups, const backward_pass& pass,
                          const Optimizer& optimizer, const Rounding& rounding) const = 0;
  virtual void step_long(const erased_context& ctx, const batch_groups& groups, const backward_pass& pass,
                         const Optimizer& optimizer, const Rounding& rounding) const = 0;

  const feature_table table;
  const std::size_t batch_bytes;           // of a feature_batch
  const std::size_t pool_bytes;            // of a feature_pool
  const bool stores_addresses;             // false for direct tables
  std::size_t next_of_table = no_feature;  // the next feature of the same table
};

template <bool Trains, class Source, class Pooling, class Optimizer, class Bags, class Out, class Rounding,
          class = unit>
class feature_of final : public feature<Optimizer, Bags, Out, Rounding> {
  using batch_type = feature_batch_of<Source, Bags, Pooling, Out>;
  using pool_type = typename batch_type::pool_type;
  using resolution_type = resolution<Source, Bags, Pooling>;

 public:
  feature_of(const Source& source, const Pooling& pooling)
      : feature<Optimizer, Bags, Out, Rounding>(table_of(source, pooling), bytes_of_item<batch_type>(),
                                                bytes_of_item<pool_type>(), !DirectRowSource<Source>),
        source_(source),
        pooling_(pooling) {}
  index_t address_bytes(const Bags& bags) const noexcept override {
    return unresolved_rows(source_, bags, pooling_).address_bytes();
  }
  index_t long_bag_bytes(const Bags& bags) const noexcept override {
    using job = pool_job<resolution<Source, Bags, Pooling>, Out>;
    return job::bytes_for(longest_bag(bags), source_.format().width());
  }
  index_t grouped(const Bags& bags) const noexcept override { return grouped_positions(bags, pooling_); }
  status check(const Bags& bags, matrix_view<Out> out) const override {
    return lookup_shapes(source_.format().width(), bags, pooling_, out);
  }
  status check_policies() const override { return check_max_norm(pooling_); }
  feature_batch<Out>* make_batch(void* where, const Bags& bags) const override {
    return ::new (where) batch_type(source_, bags, pooling_);
  }
  status check_small(isa which, const Bags& bags, matrix_view<Out> out) const override {
    if constexpr (DirectRowSource<Source>) {
      if (const status s = check(bags, out); !s) return s;
      resolution_type rows(source_, bags, pooling_);
      if (const status s = rows.open(); !s) return s;
      if constexpr (resolution_type::examines) {
        first_position bad;
        rows.examine(which, 0, rows.positions(), bad);
        if (const status s = rows.fault(bad); !s) return s;
      }
      const auto row_of = rows.rows();
      const index_t bytes = source_.format().stride_bytes();
      for (index_t k = bags.first_position(); k < bags.end_position(); ++k) {
        if (kernel_policy<Pooling>::ids == ids_are::filtered && row_of.absent(k)) continue;
        for (index_t line = 0; line < bytes; line += 64) __builtin_prefetch(row_of(k) + line);
      }
    }
    return {};
  }
  void pool_small(const erased_context& ctx, const Bags& bags, matrix_view<Out> out) const override {
    if constexpr (DirectRowSource<Source>) {
      resolution_type rows(source_, bags, pooling_);
      static_cast<void>(rows.open());  // checked before, as finish(), which fails for keys only
      static_cast<void>(rows.finish());
      pool_job<resolution_type, Out> job(rows, out);
      scratch_block none(static_cast<std::byte*>(nullptr), 0);
      job.plan(ctx, none);
      if (job.units() > 0) job.pool(0, job.units());
      job.close(ctx);
    }
  }
  void step_short(const erased_context& ctx, const batch_groups& groups, const backward_pass& pass,
                  const Optimizer& optimizer, const Rounding& rounding) const override {
    if constexpr (Trains) {
      step_short_groups(ctx, groups, pass, source_, this->table.norm_cap, optimizer, rounding);
    }
  }
  void step_long(const erased_context& ctx, const batch_groups& groups, const backward_pass& pass,
                 const Optimizer& optimizer, const Rounding& rounding) const override {
    if constexpr (Trains) {
      step_long_groups(ctx, groups, pass, source_, this->table.norm_cap, optimizer, rounding);
    }
  }

 private:
  Source source_;
  Pooling pooling_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
