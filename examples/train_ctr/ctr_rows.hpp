// The rows of a source, kept where they fit and read again where they don't; and batches of them, shuffled.
//
//   survey   source ──> counts, uses of ids, test or train?   chunks kept, until the memory is used up
//
//   epoch    kept    [ window 0, shuffled                         ]    one of all rows, unless --window
//            read    [ window 0, shuffled ][ window 1, shuffled ] ...  one is trained on, the next is read
//                        └──> gathered_rows, batch by batch
//
// The order of rows depends on the seed, the epoch and the size of a window, so kept rows give the bits of
// those read again in windows of the same size.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/core/random.hpp>
#include <deeprec/exec/executor_ref.hpp>

#include "models/ctr_data.hpp"
#include "progress.hpp"
#include "row_source.hpp"

namespace ctr {

/// What a row is for; nothing: one of weight 0.
enum class row_use : unsigned char { train, valid, test, nothing };

/// What has been read of the rows, one after the other.
struct passed_rows {
  index_t used = 0;        ///< those of weight 0 have no number
  std::uint64_t hash = 0;  ///< of all, in their order
};

class ctr_rows {
 public:
  static constexpr index_t chunk_rows = 4096;
  /// `train_fraction` of the rows train, the rest test; `valid_fraction` of the former validate instead. Each
  /// row is drawn by its number: what it holds, its label above all, has no part in that.
  /// `window` rows are shuffled at a time, 0: as many as `memory` bytes hold.
  ctr_rows(row_source& source, double train_fraction, index_t memory, index_t window, std::uint64_t seed,
           double valid_fraction = 0)
      : source_(&source),
        train_fraction_(train_fraction),
        fit_fraction_(train_fraction * (1 - valid_fraction)),
        memory_(memory),
        window_(window),
        seed_(seed),
        ids_(source.table_rows()) {
    // In a sparse_batch, with its offset and its place in an order.
    const ctr_columns& columns = source.columns();
    const index_t of_field = columns.has_bags() ? 4 : 1;  // tokens, and an offset for each field
    row_bytes_ = static_cast<index_t>(sizeof(std::int64_t)) * (of_field * columns.tokens + 1) +
                 static_cast<index_t>(sizeof(float)) * (columns.numbers + 1 + (columns.has_weights ? 1 : 0)) +
                 static_cast<index_t>(sizeof(std::uint32_t)) + 1;
  }

  /// Reads all rows once; each(chunk, row, use) sees them in their order. False: interrupted() became true.
  template <class Interrupted, class Each>
  bool survey(deeprec::executor_ref executor, const Interrupted& interrupted, const Each& each) {
    source_->rewind(executor);
    progress bar("read", static_cast<double>(source_->bytes()), progress::unit::bytes);
    sparse_batch spare;
    row_hash hash_of = hashes();
    bool fits = true;
    for (;;) {
      if (is_kept_ = fits; interrupted()) return false;
      sparse_batch chunk;
      chunk.swap(spare);
      if (!read_chunk(*source_, chunk, chunk_rows)) break;
      bar.show(static_cast<double>(source_->bytes_read()));
      for (index_t r = 0; r < chunk.rows(); ++r) {
        const row_use use = use_of(chunk, r, hash_of(chunk, r), passed_);
        ++counts_[static_cast<std::size_t>(use)];
        if (fits) uses_.push_back(use);
        each(std::as_const(chunk), r, use);
      }
      fits = fits && (rows() + chunk_rows) * row_bytes_ <= memory_;
      if (fits) {
        kept_.push_back(std::move(chunk));
      } else {
        if (!source_->is_rewindable()) {
          throw failure(source_->name() + ": a pipe can be read only once, and its rows don't fit --memory");
        }
        std::vector<sparse_batch>().swap(kept_);
        std::vector<row_use>().swap(uses_);
        chunk.swap(spare);
      }
    }
    // Two windows, and a quarter for the reader.
    if (window_ == 0 && !is_kept_) window_ = std::max<index_t>(1, memory_ / 4 * 3 / 2 / row_bytes_);
    if (window_ >= rows()) window_ = 0;
    return true;
  }

  [[nodiscard]] index_t rows() const { return counts_[0] + counts_[1] + counts_[2] + counts_[3]; }
  [[nodiscard]] index_t rows(row_use use) const { return counts_[static_cast<std::size_t>(use)]; }
  /// Of all rows, in their order.
  [[nodiscard]] std::uint64_t hash() const { return passed_.hash; }
  [[nodiscard]] bool is_kept() const { return is_kept_; }
  /// Rows that are shuffled at a time; 0: all.
  [[nodiscard]] index_t window() const { return window_; }

 private:
  friend class row_feed;

  [[nodiscard]] row_hash hashes() const { return {ids_, seed_}; }
  row_use use_of(const sparse_batch& chunk, index_t row, std::uint64_t hash, passed_rows& passed) const {
    const auto weights = chunk.row_weights();
    const float weight = weights.empty() ? 1.0F : weights[static_cast<std::size_t>(row)];
    if (weight == 0) return row_use::nothing;  // as one that is not there
    // What a row is for does not depend on its weight; the data is another with another weight.
    const std::uint64_t content =
        weight == 1 ? hash : deeprec::mix64(hash ^ std::bit_cast<std::uint32_t>(weight));
    passed.hash = deeprec::mix64(passed.hash + content);
    const auto number = static_cast<std::uint64_t>(passed.used++);
    const double place = static_cast<double>(deeprec::mix64(deeprec::mix64(seed_) + number) >> 11) * 0x1p-53;
    if (place >= train_fraction_) return row_use::test;
    return place < fit_fraction_ ? row_use::train : row_use::valid;
  }
  static bool read_chunk(row_source& source, sparse_batch& chunk, index_t most) {
    chunk.reshape(source.shape());
    chunk.reserve_rows(most).or_throw();  // no more than these
    return source.next(chunk, most) > 0;
  }

  row_source* source_;
  double train_fraction_, fit_fraction_;  // fit: without those that validate
  index_t memory_, window_;
  std::uint64_t seed_;
  std::vector<index_t> ids_;  // of each token column, for hashes
  index_t row_bytes_ = 0;
  std::array<index_t, 4> counts_{};  // by row_use
  passed_rows passed_;
  bool is_kept_ = false;
  std::vector<sparse_batch> kept_;  // chunks of chunk_rows rows; the last one may have fewer
  std::vector<row_use> uses_;       // of each row kept
};

/// The rows of one use, epoch after epoch: those to train shuffled, the others in their order.
class row_feed {
 public:
  /// @param source  of rows that are read again; null: that of `rows`, which has one feed at a time
  row_feed(const ctr_rows& rows, row_use use, row_source* source = nullptr)
      : rows_(&rows), source_(source == nullptr ? rows.source_ : source), use_(use), hash_of_(rows.hashes()) {
    const index_t all = std::max<index_t>(rows.rows(), 1);
    size_ = rows.window() > 0 ? rows.window() : all;
  }

  /// Before the first row of an epoch, or the row `skipped` of that use.
  void begin(deeprec::executor_ref executor, std::uint64_t epoch, index_t skipped) {
    epoch_ = epoch;
    next_window_ = 0;
    read_ = 0;
    passed_ = {};
    for (stretch* w : {&current_, &ahead_}) w->clear();
    if (!rows_->is_kept()) source_->rewind(executor);
    ended_ = rows_->is_kept();
    while (skipped > 0 && (current_.left() > 0 || advance())) {
      const index_t passed = std::min(skipped, current_.left());
      current_.at += static_cast<std::size_t>(passed);
      skipped -= passed;
    }
  }

  /// The next rows, `count` of them but at the end; none: the epoch is over.
  void gather(gathered_rows& to, index_t count, const ctr_tables& tables) {
    to.clear();
    next(count, [&](const sparse_batch& chunk, index_t row) { to.append(chunk, row, tables); });
  }
  /// Calls append(chunk, row) for the same rows.
  template <class Append>
  void next(index_t count, const Append& append) {
    while (count > 0 && (current_.left() > 0 || advance())) {
      for (index_t n = std::min(count, current_.left()); n > 0; --n, --count) {
        constexpr std::size_t ahead = 8;
        if (const std::size_t later = current_.at + ahead; later < current_.order.size()) {
          const auto [chunk, row] = place(current_.order[later]);
          prefetch_row(*chunk, row);
        }
        const auto [chunk, row] = place(current_.order[current_.at++]);
        append(*chunk, row);
      }
    }
    // As far as the current window is used up, so far the next one is read.
    const double used = static_cast<double>(current_.at) / static_cast<double>(current_.order.size() + 1);
    while (!ended_ && static_cast<double>(ahead_.rows) < used * static_cast<double>(size_)) read_ahead();
  }

 private:
  /// The rows of a window, or those of them that are of this use, in the order in which they are used.
  struct stretch {
    std::vector<sparse_batch> chunks;  // read again
    index_t first = 0;                 // its first row among those kept, or 0
    index_t rows = 0;
    std::vector<std::uint32_t> order;
    std::size_t at = 0;

    [[nodiscard]] index_t left() const { return static_cast<index_t>(order.size() - at); }
    void clear() {
      rows = 0;
      order.clear();
      at = 0;
    }
  };

  [[nodiscard]] index_t chunk_size() const {
    return rows_->is_kept() ? ctr_rows::chunk_rows : std::min(ctr_rows::chunk_rows, size_);
  }

  /// Where a row of the current window lies.
  [[nodiscard]] std::pair<const sparse_batch*, index_t> place(std::uint32_t of_window) const {
    const index_t row = current_.first + of_window;
    const auto chunk = static_cast<std::size_t>(row / chunk_size());
    return {rows_->is_kept() ? &rows_->kept_[chunk] : &current_.chunks[chunk], row % chunk_size()};
  }

  void read_ahead() {
    const auto number = static_cast<std::size_t>(ahead_.rows / chunk_size());
    if (number == ahead_.chunks.size()) ahead_.chunks.emplace_back();
    sparse_batch& chunk = ahead_.chunks[number];
    if (!ctr_rows::read_chunk(*source_, chunk, std::min(chunk_size(), size_ - ahead_.rows))) {
      ended_ = true;
    } else {
      for (index_t r = 0; r < chunk.rows(); ++r) {
        if (rows_->use_of(chunk, r, hash_of_(chunk, r), passed_) == use_) {
          ahead_.order.push_back(static_cast<std::uint32_t>(ahead_.rows + r));
        }
      }
      ahead_.rows += chunk.rows();
      read_ += chunk.rows();
    }
    if (read_ > rows_->rows() || (ended_ && (read_ != rows_->rows() || passed_.hash != rows_->hash()))) {
      throw failure(source_->name() + ": must not change while it is trained on (had " +
                    std::to_string(rows_->rows()) + " rows, has " + std::to_string(read_) +
                    (read_ == rows_->rows() ? " other" : "") + (read_ > rows_->rows() ? " and more)" : ")"));
    }
  }

  /// To the next window; false: there is none.
  bool advance() {
    if (rows_->is_kept()) {
      const index_t first = next_window_ * size_;
      if (first >= rows_->rows()) return false;
      current_.clear();
      current_.first = first;
      current_.rows = std::min(size_, rows_->rows() - first);
      for (index_t r = 0; r < current_.rows; ++r) {
        if (rows_->uses_[static_cast<std::size_t>(first + r)] == use_) {
          current_.order.push_back(static_cast<std::uint32_t>(r));
        }
      }
    } else {
      while (!ended_ && ahead_.rows < size_) read_ahead();
      if (ahead_.rows == 0) return false;
      std::swap(current_, ahead_);
      ahead_.clear();
    }
    if (use_ == row_use::train)
      shuffle(current_.order, (epoch_ + 1) << 32 | static_cast<std::uint64_t>(next_window_));
    ++next_window_;
    return true;
  }
  void shuffle(std::vector<std::uint32_t>& order, std::uint64_t stream) const {
    const deeprec::counter_rng rng(rows_->seed_);
    for (std::size_t i = order.size(); i > 1; --i) {
      const auto j = static_cast<std::size_t>(rng.uniform(stream, i) * static_cast<double>(i));
      std::swap(order[i - 1], order[j]);
    }
  }

  const ctr_rows* rows_;
  row_source* source_;
  row_use use_;
  row_hash hash_of_;
  index_t size_;  // of a window
  std::uint64_t epoch_ = 0;
  index_t next_window_ = 0;
  stretch current_, ahead_;  // ahead_ is read while current_ is used
  bool ended_ = true;        // nothing is left to read
  index_t read_ = 0;
  passed_rows passed_;
};

}  // namespace ctr
