// A dense_table whose rows are a file: larger than RAM, on persistent memory, or there again after a restart
// without being read.
//
//   auto items = mapped_table<f32_rows>::open("items.map", 1'000'000'000, 64).or_throw();
//   if (!items.found()) items.table().initialize(pool, row_init::uniform{.seed = 42, .bound = 0.05F});
//   lookup(pool, items.table().view(), bags, combiner::sum, out);
//   items.close().or_throw();
//
// A process that ends without close() leaves a file that is refused: a row that was being written may be
// torn. Which stores are in the file when, and what a truncated file does: mapped_file.hpp. Rows of a file
// without a restart: dense_table on mapped_resource. Not here: copies of a moment (table_file.hpp,
// checkpoint_folder.hpp).
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/memory/mapped_file.hpp>
#include <deeprec/memory/mapping_options.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/support/file_faults.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Owner of R rows in a file.
///
/// @threads the table as any dense_table; calls of the file: one thread at a time
/// @error   its destructor does not close()
template <RowFormat Format>
class mapped_table {
 public:
  using format_type = Format;

  /// No file, and a table of no rows.
  mapped_table() = default;

  /// Maps the rows of a file, and makes it where it is missing: with room for all rows, whose bytes are zero.
  /// A file of other rows is refused: of another number, format, width, stride, or optimizer's state.
  ///
  /// @shape   (R,D)
  /// @cost    some system calls, a wait for the disk; with faults::at_once the pages
  /// @threads reentrant
  /// @error   as mapped_file::open(); shape_mismatch for other rows; invalid_value for a negative number
  static result<mapped_table> open(const std::string& path, index_t rows, Format format,
                                   const mapped_file_options& options = {}) {
    mapped_table made;
    const index_t bytes = capped_product(rows, format.stride_bytes());
    auto file = mapped_file::open(path, description_of(rows, format), bytes, options);
    if (!file) return file.fault();
    made.file_ = std::move(file).value();
    made.table_ = dense_table<Format>(made.file_.data(), rows, format);
    return {std::move(made)};
  }
  /// The same, with room for the state of an optimizer behind each row; it is that optimizer's.
  template <RowOptimizer O>
  static result<mapped_table> open(const std::string& path, index_t rows, index_t width, state_of_t<O>,
                                   const mapped_file_options& options = {}) {
    return open(path, rows,
                Format(width, row_layout{.state_floats = state_floats_of<O>(Format(width).width()),
                                         .state_owner = optimizer_name<O>.data()}),
                options);
  }

  /// The table: of this file's rows until close(), then of none. It is not moved from.
  [[nodiscard]] dense_table<Format>& table() noexcept { return table_; }
  [[nodiscard]] const dense_table<Format>& table() const noexcept { return table_; }

  /// Whether open() found the file; otherwise it made it.
  [[nodiscard]] bool found() const noexcept { return file_.found(); }
  /// False where open() took a file that was not closed.
  [[nodiscard]] bool was_closed() const noexcept { return file_.was_closed(); }
  /// As mapped_file::check(): before a batch, a truncated file is a status and no signal.
  [[nodiscard]] result<void> check() const { return file_.check(); }
  /// As mapped_file::flush().
  [[nodiscard]] result<void> flush() const { return file_.flush(); }
  /// As mapped_file::close(); views of the table end with it.
  [[nodiscard]] result<void> close() {
    auto done = file_.close();
    if (done) table_ = {};
    return done;
  }
  /// As mapped_file::report().
  [[nodiscard]] mapped_report report() const { return file_.report(); }

 private:
  static std::string description_of(index_t rows, const Format& format) {
    static_assert(
        !requires(const Format& apart) { apart.state_of(index_t{0}); },
        "deeprec::mapped_table: the state of these rows lies apart from them. Fix: rows without "
        "with_state, or with their state beside them.");
    std::string all = "table of " + detail::format_name(format) + ", " + std::to_string(rows) + " rows of " +
                      std::to_string(format.width()) + ", stride " + std::to_string(format.stride_bytes());
    if (format.state_floats() > 0) {
      all += ", state of " + std::to_string(format.state_floats());
      const std::string_view owner = detail::state_owner_of(format);
      if (!owner.empty()) all += " of " + std::string(owner);
    }
    return all;
  }

  mapped_file file_;
  dense_table<Format> table_;
};

}}  // namespace deeprec::DEEPREC_ABI
