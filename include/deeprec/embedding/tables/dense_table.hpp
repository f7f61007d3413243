// An embedding table that owns its rows: R rows of one format, ids 0 .. R-1, on huge pages by default.
//
//   dense_table<f32_rows> table(1'000'000, 64);                        for lookups and SGD
//   dense_table<f32_rows> trained(1'000'000, 64, state_of<adagrad>);   each row with Adagrad's state
//   table.initialize(pool, row_init::uniform{.seed = 42, .bound = 0.05f});
//   lookup(pool, table.view(), bags, combiner::sum, out);
//
// Not here: growing tables, tiers; rows in a mapped file (mapped_table.hpp); saving: table_file.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory_resource>
#include <optional>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/random.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/memory/huge_page_resource.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/support/scratch_block.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace row_init {

/// Initialisers fill one row; the values depend on the seed, the row and the column only.
struct zeros {
  void operator()(index_t, float* values, index_t width) const { std::fill_n(values, width, 0.0F); }
};

/// Uniform in [-bound, bound).
struct uniform {
  std::uint64_t seed = 0;
  float bound = 0.05F;

  void operator()(index_t row, float* values, index_t width) const {
    const counter_rng rng(seed);
    for (index_t block = 0; block * 4 < width; ++block) {
      const random_words random =
          rng.words(static_cast<std::uint64_t>(row), static_cast<std::uint64_t>(block));
      const index_t count = std::min<index_t>(4, width - block * 4);
      for (index_t j = 0; j < count; ++j) {
        values[block * 4 + j] = (2.0F * counter_rng::to_unit(random.w[j]) - 1.0F) * bound;
      }
    }
  }
};

/// Normal with the given deviation, mean 0.
struct normal {
  std::uint64_t seed = 0;
  float deviation = 0.01F;

  void operator()(index_t row, float* values, index_t width) const {
    const counter_rng rng(seed);
    for (index_t j = 0; j < width; ++j) {
      values[j] = deviation * static_cast<float>(
                                  rng.normal(static_cast<std::uint64_t>(row), static_cast<std::uint64_t>(j)));
    }
  }
};

}  // namespace row_init

template <RowFormat Format>
class mapped_table;

/// Owner of R rows.
///
/// Invariant: rows() * stride bytes at one address that never moves while the table lives.
/// @threads lookups from many threads at once; initialize and update exclude them
/// @error   the constructor throws deeprec::error (out_of_memory) when the allocation fails or the size
///          exceeds any possible allocation
template <RowFormat Format>
class dense_table {
 public:
  using format_type = Format;

  dense_table() = default;
  /// The rows' bytes are zero, state included, until initialize().
  dense_table(index_t rows, Format format, std::pmr::memory_resource* memory = huge_page_resource::shared())
      : memory_(memory), rows_(rows), format_(format) {
    const auto stride = static_cast<std::size_t>(format.stride_bytes());
    if (rows < 0 || (stride > 0 && static_cast<std::size_t>(rows) > max_bytes / stride)) {
      detail::raise(errc::out_of_memory, "dense_table: rows * stride must fit in memory");
    }
    bytes_ = static_cast<std::size_t>(rows) * stride;
    if (bytes_ == 0) return;
#if DEEPREC_EXCEPTIONS
    try {
      data_ = static_cast<std::byte*>(memory->allocate(bytes_, row_alignment));
    } catch (const std::bad_alloc&) {
    }
#else
    data_ = static_cast<std::byte*>(memory->allocate(bytes_, row_alignment));
#endif
    if (data_ == nullptr)
      detail::raise(errc::out_of_memory,
                    "dense_table: the memory resource must provide rows * stride bytes (it refused)");
    if (memory != huge_page_resource::shared() || bytes_ < huge_page_size) {
      std::memset(data_, 0, bytes_);  // fresh mappings are zero already
    }
  }
  /// The same, with room for the state of an optimizer behind each row; it is that optimizer's.
  template <RowOptimizer O>
  dense_table(index_t rows, index_t width, state_of_t<O>,
              std::pmr::memory_resource* memory = huge_page_resource::shared())
      : dense_table(rows,
                    Format(width, row_layout{.state_floats = state_floats_of<O>(Format(width).width()),
                                             .state_owner = optimizer_name<O>.data()}),
                    memory) {}
  ~dense_table() {
    if (data_ != nullptr && memory_ != nullptr) memory_->deallocate(data_, bytes_, row_alignment);
  }
  dense_table(dense_table&& other) noexcept { swap(other); }
  dense_table& operator=(dense_table&& other) noexcept {
    dense_table(std::move(other)).swap(*this);
    return *this;
  }

  [[nodiscard]] index_t rows() const noexcept { return rows_; }
  [[nodiscard]] index_t width() const noexcept { return format_.width(); }
  [[nodiscard]] const Format& format() const noexcept { return format_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

  [[nodiscard]] table_view<Format> view() noexcept { return {data_, rows_, format_}; }
  [[nodiscard]] const_table_view<Format> view() const noexcept { return {data_, rows_, format_}; }

  /// Writes the values of `fill(row, values, width)` to every row and zeroes its optimizer state.
  ///
  /// @numerics the same bits for any number of threads; 16-bit rows round to nearest even
  /// @cost     O(R*D); first touch of the pages, in parallel; scratch of D floats per worker, from the
  ///           context's resource
  /// @threads  one caller, no lookup at the same time
  /// @error    throws deeprec::error (out_of_memory when the scratch can't be allocated, stopped); no row is
  ///           written then
  template <class Context, class Initializer>
  DEEPREC_PER_UNIT void initialize(Context&& context_or_executor, const Initializer& fill) {
    const auto ctx = detail::as_context(context_or_executor);
    const detail::host_call call(ctx, "initialize");
    if (!call) call.stopped().or_throw();
    if (rows_ == 0) return;
    const index_t width = format_.width();
    const index_t of_worker = capped_round_up(width, 16);  // workers share no cache line
    const auto workers = static_cast<index_t>(ctx.executor->concurrency());
    const index_t floats = capped_product(of_worker, workers);
    std::optional<detail::scratch_block> scratch;  // a resource serves one thread: bodies must not use it
    const status made = detail::or_out_of_memory([&]() -> status {
      scratch.emplace(ctx.memory, detail::scratch_block::bytes_of<float>(floats));
      return {};
    });
    if (!made)
      detail::raise(made.code(),
                    "initialize: the context's resource must give D floats for each worker (it refused)");
    float* const all_values = scratch->take<float>(floats).data();
    const index_t grain =
        std::max<index_t>(1, index_t{huge_page_size} / std::max<index_t>(1, format_.stride_bytes()));
    ctx.executor->parallel_for(rows_, grain, [&](index_t begin, index_t end, int worker) {
      float* const values = all_values + worker * of_worker;
      for (index_t row = begin; row < end; ++row) {
        std::byte* bytes = view().row(row);
        fill(row, values, width);
        format_.encode(values, bytes);
        if (format_.state_floats() > 0) {
          std::memset(format_.state(bytes), 0,
                      static_cast<std::size_t>(format_.state_floats()) * sizeof(float));
        }
      }
    });
  }

 private:
  template <RowFormat>
  friend class mapped_table;
  // Rows that a mapped_table owns.
  dense_table(std::byte* data, index_t rows, Format format) noexcept
      : data_(data),
        bytes_(static_cast<std::size_t>(rows) * static_cast<std::size_t>(format.stride_bytes())),
        rows_(rows),
        format_(format) {}

  static constexpr std::size_t row_alignment = 64;
  static constexpr std::size_t max_bytes = (std::numeric_limits<std::ptrdiff_t>::max)();

  void swap(dense_table& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(rows_, other.rows_);
    std::swap(format_, other.format_);
  }

  std::pmr::memory_resource* memory_ = nullptr;  // null: the rows are another's
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  index_t rows_ = 0;
  Format format_{};
};

}}  // namespace deeprec::DEEPREC_ABI
