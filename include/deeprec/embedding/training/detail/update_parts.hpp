// The type-erased features and tables of an update_group.
//
//   tables     0: rows, step()      1: ...
//   features   0 -> table 0         1 -> table 1      2 -> table 0: one sum for each of its rows
#pragma once

#include <cstddef>
#include <memory_resource>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/core/unit.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/embedding/training/detail/backward.hpp>
#include <deeprec/embedding/training/detail/step_groups.hpp>
#include <deeprec/exec/executor_ref.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A feature, with its pooling type-erased.
template <class Bags>
class update_feature {
 public:
  explicit update_feature(std::size_t number) : table(number) {}
  virtual ~update_feature() = default;
  virtual status check(const context<executor_ref>& ctx, const Bags& bags) const = 0;
  virtual void add_to(backward_plan& plan, const context<executor_ref>& ctx, const Bags& bags,
                      matrix_view<const float> gradient) const = 0;
  virtual void count_skipped(const Bags& bags) const = 0;

  const std::size_t table;
};

template <class Bags, class Pooling, class = unit>
class update_feature_of final : public update_feature<Bags> {
 public:
  update_feature_of(std::size_t number, index_t rows, const Pooling& pooling)
      : update_feature<Bags>(number), rows_(rows), pooling_(pooling) {}
  status check(const context<executor_ref>& ctx, const Bags& bags) const override {
    if (const status s = check_max_norm(pooling_); !s) return s;
    return check_backward(ctx, bags, rows_, pooling_);
  }
  void add_to(backward_plan& plan, const context<executor_ref>& ctx, const Bags& bags,
              matrix_view<const float> gradient) const override {
    plan.add(ctx, bags, gradient, rows_, pooling_);
  }
  void count_skipped(const Bags& bags) const override { detail::count_skipped(bags, rows_, pooling_); }

 private:
  index_t rows_;
  Pooling pooling_;
};

/// A table, with its format type-erased.
template <class Optimizer, class Rounding>
class update_table {
 public:
  template <class Format>
  update_table(table_view<Format> view, float cap)
      : rows_at(view.data()),
        rows(view.rows()),
        width(view.width()),
        has_bytes(view.rows() > 0 && view.format().stride_bytes() > 0),
        norm_cap(cap) {}
  virtual ~update_table() = default;
  /// True when the table has this format and stride.
  [[nodiscard]] virtual bool is(const void* format, index_t stride_bytes) const noexcept = 0;
  virtual void step(const context<executor_ref>& ctx, const backward_plan& plan, const Optimizer& optimizer,
                    const Rounding& rounding) const = 0;

  const void* const rows_at;
  const index_t rows;
  const index_t width;
  const bool has_bytes;  // else rows_at identifies no table
  const float norm_cap;  // max_norm of the lookups; 0: none
};

/// Its address identifies the format, without RTTI.
template <class Format>
inline constexpr char name_of_format = 0;

template <class Format, class Optimizer, class Rounding, class = unit>
class update_table_of final : public update_table<Optimizer, Rounding> {
 public:
  update_table_of(table_view<Format> view, float cap)
      : update_table<Optimizer, Rounding>(view, cap), table_(view) {}
  bool is(const void* format, index_t stride_bytes) const noexcept override {
    return format == &name_of_format<Format> && stride_bytes == table_.format().stride_bytes();
  }
  void step(const context<executor_ref>& ctx, const backward_plan& plan, const Optimizer& optimizer,
            const Rounding& rounding) const override {
    step_groups(ctx, plan, table_, this->norm_cap, optimizer, rounding);
  }

 private:
  table_view<Format> table_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
