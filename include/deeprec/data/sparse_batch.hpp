// The rows that a text parser makes: labels, dense features, and one bag of ids per row and feature.
//
//   labels   (B)       1          0          0
//   dense    (B, F)    [1 5 260]  [0 2 12]   [3 0 7]      row-major
//   feature 0   bags (B)  {7 1 9}    {4}        {}           one jagged batch per feature,
//   feature 1   bags (B)  {2}        {2 8}      {5}          with weights if the format has them
//
// Owns its memory and reuses it: a batch that is filled again and again soon allocates nothing.
// Not here: reading (batch_reader.hpp), the formats (criteo_format.hpp ...).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/data/batch_shape.hpp>
#include <deeprec/data/detail/extra_arrays.hpp>
#include <deeprec/data/detail/grow_array.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Owner of B parsed rows. Move-only.
///
/// Readers use the first half of the members; formats write rows with the second half.
///
/// @space   host; memory comes from the resource given to the constructor
/// @threads concurrent readers are safe; a writer needs exclusive access, except where noted
class sparse_batch {
 public:
  explicit sparse_batch(std::pmr::memory_resource* memory = std::pmr::get_default_resource()) noexcept
      : memory_(memory), labels_(memory), dense_(memory), ones_(memory), extras_(memory) {}

  sparse_batch(sparse_batch&& other) noexcept : sparse_batch(other.memory_) { swap(other); }
  sparse_batch& operator=(sparse_batch&& other) noexcept {
    swap(other);
    return *this;
  }
  ~sparse_batch() = default;

  /// @cost    O(1)
  /// @threads exclusive access to both batches
  /// @error   none
  void swap(sparse_batch& other) noexcept {
    std::swap(shape_, other.shape_);
    std::swap(rows_, other.rows_);
    std::swap(memory_, other.memory_);
    std::swap(labels_, other.labels_);
    std::swap(dense_, other.dense_);
    std::swap(ones_, other.ones_);
    extras_.swap(other.extras_);
    features_.swap(other.features_);
  }

  [[nodiscard]] const batch_shape& shape() const noexcept { return shape_; }
  /// B.
  [[nodiscard]] index_t rows() const noexcept { return rows_; }
  [[nodiscard]] index_t feature_count() const noexcept { return shape_.features; }

  /// @shape (B)
  [[nodiscard]] std::span<const float> labels() const noexcept {
    return {labels_.data(), static_cast<std::size_t>(rows_)};
  }
  /// @shape (B, dense_columns)
  [[nodiscard]] matrix_view<const float> dense() const noexcept {
    return {dense_.data(), rows_, shape_.dense_columns};
  }
  /// The same, writable, for normalisation in place.
  [[nodiscard]] matrix_view<float> dense() noexcept { return {dense_.data(), rows_, shape_.dense_columns}; }
  /// The bags of feature s. Valid until the batch is written to.
  ///
  /// @shape   B bags
  /// @pre     0 <= s < feature_count()
  /// @cost    O(1)
  /// @threads reentrant
  /// @error   none
  [[nodiscard]] DEEPREC_INLINE jagged_view<std::int64_t, std::int64_t> feature(index_t s) const {
    DEEPREC_EXPECTS(0 <= s && s < shape_.features);
    const feature_arrays& one = features_[static_cast<std::size_t>(s)];
    const float* weights = shape_.weights == id_weights::present ? one.weights.data() : nullptr;
    if (rows_ == 0) return {nullptr, 0, one.ids.data(), 0, weights};
    if (shape_.bags == bag_size::one) {
      return {ones_.data(), rows_, one.ids.data(), rows_, weights};
    }
    return {one.offsets.data(), rows_, one.ids.data(), one.size, weights};
  }

  /// The weights of rows (B), where shape().extras has them; else none.
  [[nodiscard]] std::span<const float> row_weights() const noexcept {
    return {extras_.weights(), shape_.extras.weights ? static_cast<std::size_t>(rows_) : 0};
  }
  /// The groups of rows, likewise.
  [[nodiscard]] std::span<const std::int64_t> groups() const noexcept {
    return {extras_.groups(), shape_.extras.groups ? static_cast<std::size_t>(rows_) : 0};
  }
  /// The name of a row below rows(), until the batch is written to; empty where the format has none.
  [[nodiscard]] std::string_view name(index_t row) const {
    DEEPREC_EXPECTS(0 <= row && row < rows_);
    return shape_.extras.names ? extras_.name(row) : std::string_view();
  }

  /// Drops the rows and keeps the memory.
  ///
  /// @cost    O(features)
  /// @threads exclusive access to the batch
  /// @error   none
  void clear() noexcept {
    rows_ = 0;
    for (feature_arrays& one : features_) one.size = 0;
  }

  // ---- for formats -------------------------------------------------------------------------

  /// Drops the rows and sets the shape.
  ///
  /// @cost    O(features); allocates when the number of features grows
  /// @threads exclusive access to the batch
  /// @error   none (bad_alloc where exceptions are on)
  void reshape(const batch_shape& shape) {
    if (!(shape == shape_)) {
      while (features_.size() < static_cast<std::size_t>(shape.features)) {
        features_.emplace_back(memory_, static_cast<index_t>(features_.size() % 61));
      }
      shape_ = shape;
    }
    clear();
  }

  /// Makes room for `more` further rows: labels, dense values, offsets, and one id per feature for
  /// bag_size::one. The rows of the batch are kept.
  ///
  /// @cost    amortised O(1) per row; allocates when it must
  /// @threads exclusive access to the batch
  /// @error   out_of_memory; the batch is unchanged
  [[nodiscard]] status reserve_rows(index_t more) noexcept {
    const index_t total = rows_ + more;
    if (!labels_.reserve(total, rows_)) return detail::no_room_for_rows;
    if (!dense_.reserve(total * shape_.dense_columns, rows_ * shape_.dense_columns))
      return detail::no_room_for_rows;
    if (!extras_.reserve(shape_.extras, total, rows_)) return detail::no_room_for_rows;
    if (shape_.bags == bag_size::one) {
      const index_t known = ones_.capacity();
      if (!ones_.reserve(total + 1, 0)) return detail::no_room_for_rows;
      if (ones_.capacity() > known) {
        for (index_t i = 0; i < ones_.capacity(); ++i) ones_.data()[i] = i;
      }
      for (index_t s = 0; s < shape_.features; ++s) {
        if (!reserve_ids(s, total, rows_)) return detail::no_room_for_rows;
      }
    } else {
      for (index_t s = 0; s < shape_.features; ++s) {
        feature_arrays& one = features_[static_cast<std::size_t>(s)];
        if (!one.offsets.reserve(total + 1, rows_ == 0 ? 0 : rows_ + 1)) return detail::no_room_for_rows;
        if (rows_ == 0) one.offsets.data()[0] = 0;
        if (!reserve_ids(s, one.size, one.size)) return detail::no_room_for_rows;
      }
    }
    return {};
  }

  /// Addresses of the next reserved rows: first label, first dense value, first id of feature s (for
  /// bag_size::one). commit_rows() adds them to the batch; a row that isn't committed leaves no trace.
  [[nodiscard]] float* next_label() noexcept { return labels_.data() + rows_; }
  [[nodiscard]] float* next_dense() noexcept { return dense_.data() + rows_ * shape_.dense_columns; }
  [[nodiscard]] std::int64_t* next_id(index_t s) noexcept {
    return features_[static_cast<std::size_t>(s)].ids.data() + rows_;
  }

  /// The next weight and group, where the shape has them, as next_label().
  [[nodiscard]] float* next_row_weight() noexcept { return extras_.weights() + rows_; }
  [[nodiscard]] std::int64_t* next_group() noexcept { return extras_.groups() + rows_; }
  /// Sets the name of the reserved row `ahead` rows behind the next one, where the shape has names; those of
  /// the rows before it are set. False: out_of_memory.
  [[nodiscard]] bool set_name(index_t ahead, std::string_view name) noexcept {
    return extras_.set_name(rows_ + ahead, name);
  }

  /// Adds an id (and its weight) to the open row's bag of feature s, for bag_size::any.
  ///
  /// @cost    amortised O(1)
  /// @threads exclusive access to the batch
  /// @error   false: out_of_memory (a bool, as it is called for each id)
  [[nodiscard]] bool push_id(index_t s, std::int64_t id, float weight = 1.0F) noexcept {
    feature_arrays& one = features_[static_cast<std::size_t>(s)];
    if (one.size == one.ids.capacity() && !reserve_ids(s, std::max<index_t>(64, one.size + 1), one.size)) {
      return false;
    }
    one.ids.data()[one.size] = id;
    if (shape_.weights == id_weights::present) one.weights.data()[one.size] = weight;
    ++one.size;
    return true;
  }

  /// Adds the next `count` reserved rows to the batch.
  ///
  /// @pre     reserve_rows() made room; for bag_size::any count is 1, and closes the open row
  /// @cost    O(1), or O(features) for bag_size::any
  /// @threads exclusive access to the batch
  /// @error   none
  void commit_rows(index_t count) noexcept {
    rows_ += count;
    if (shape_.bags == bag_size::any) {
      for (index_t s = 0; s < shape_.features; ++s) {
        feature_arrays& one = features_[static_cast<std::size_t>(s)];
        one.offsets.data()[rows_] = one.size;
      }
    }
  }

  /// Where a columnar format writes the bags of a feature for reserved rows, for bag_size::any.
  struct bag_column {
    std::int64_t* ids = nullptr;   ///< (ids) and
    float* weights = nullptr;      ///< (ids), of the first of these rows on; null without weights
    std::int64_t* ends = nullptr;  ///< (rows): the end of each bag, counted from the first id of the batch
    index_t first = 0;             ///< the end of the bag before them
  };
  /// Room for `ids` of feature s behind those of the batch's rows.
  ///
  /// @pre     reserve_rows() made room for the rows
  /// @post    commit_columns(count) adds the first `count` of them, whose ends were written
  /// @cost    allocates when it must
  /// @threads different features may have room made at the same time, where the resource may be shared
  /// @error   out_of_memory; the batch is unchanged
  [[nodiscard]] status next_bags(index_t s, index_t ids, bag_column& to) noexcept {
    feature_arrays& one = features_[static_cast<std::size_t>(s)];
    if (!reserve_ids(s, one.size + ids, one.size)) return detail::no_room_for_rows;
    to = {one.ids.data() + one.size,
          shape_.weights == id_weights::present ? one.weights.data() + one.size : nullptr,
          one.offsets.data() + rows_ + 1, one.size};
    return {};
  }
  /// Adds the next `count` reserved rows, written column by column.
  ///
  /// @pre     labels, dense values, ids, and for bag_size::any the ends of each feature were written
  /// @cost    O(features)
  /// @threads exclusive access to the batch
  /// @error   none
  void commit_columns(index_t count) noexcept {
    rows_ += count;
    if (shape_.bags == bag_size::one || rows_ == 0) return;
    for (index_t s = 0; s < shape_.features; ++s) {
      feature_arrays& one = features_[static_cast<std::size_t>(s)];
      one.size = one.offsets.data()[rows_];
    }
  }

  /// Drops the ids pushed into the open row.
  ///
  /// @cost    O(features)
  /// @threads exclusive access to the batch
  /// @error   none
  void drop_row() noexcept {
    if (shape_.bags == bag_size::one) return;
    for (index_t s = 0; s < shape_.features; ++s) {
      feature_arrays& one = features_[static_cast<std::size_t>(s)];
      one.size = rows_ == 0 ? 0 : one.offsets.data()[rows_];
    }
  }

  /// Rows of another batch of the same shape; see reserve_parts().
  struct part {
    const sparse_batch* from = nullptr;
    index_t first = 0;
    index_t count = 0;
  };

  /// Makes room for the rows of all parts, to be copied after the batch's rows.
  ///
  /// @pre     every part has this batch's shape and is a range of rows of its source
  /// @cost    O(features * parts); allocates when it must
  /// @threads exclusive access to the batch
  /// @error   out_of_memory; the batch is unchanged
  [[nodiscard]] status reserve_parts(std::span<const part> parts) noexcept {
    index_t more = 0;
    for (const part& p : parts) more += p.count;
    if (const status s = reserve_rows(more); !s) return s;
    if (shape_.extras.names) {
      index_t bytes = 0;
      for (const part& p : parts) bytes += p.from->extras_.name_bytes(p.first, p.count);
      if (!extras_.reserve_name_bytes(bytes, rows_)) return detail::no_room_for_rows;
    }
    if (shape_.bags == bag_size::any) {
      for (index_t s = 0; s < shape_.features; ++s) {
        const index_t held = features_[static_cast<std::size_t>(s)].size;
        index_t total = held;
        for (const part& p : parts) total += p.from->ids_in(s, p.first, p.count);
        if (!reserve_ids(s, total, held)) return detail::no_room_for_rows;
      }
    }
    return {};
  }

  /// Pieces of work in copying parts: the features, then dense, then labels with what else rows have.
  [[nodiscard]] index_t copy_pieces() const noexcept { return shape_.features + 2; }

  /// Copies one piece of all parts after the batch's rows.
  ///
  /// @pre     reserve_parts(parts); afterwards commit_parts(parts), once all pieces are copied
  /// @cost    a memcpy per part
  /// @threads different pieces may be copied at the same time
  /// @error   none
  DEEPREC_PER_UNIT void copy_piece(index_t piece, std::span<const part> parts) noexcept {
    index_t row = rows_;
    const index_t width = shape_.dense_columns;
    for (const part& p : parts) {
      if (piece == shape_.features) {
        copy(dense_.data() + row * width, p.from->dense_.data() + p.first * width, p.count * width);
      } else if (piece > shape_.features) {
        copy(labels_.data() + row, p.from->labels_.data() + p.first, p.count);
        extras_.copy(shape_.extras, row, p.from->extras_, p.first, p.count);
      } else {
        copy_bags(features_[static_cast<std::size_t>(piece)],
                  p.from->features_[static_cast<std::size_t>(piece)], row, p.first, p.count);
      }
      row += p.count;
    }
  }

  /// Adds the copied parts to the batch.
  ///
  /// @cost    O(parts)
  /// @threads exclusive access to the batch
  /// @error   none
  void commit_parts(std::span<const part> parts) noexcept {
    for (const part& p : parts) rows_ += p.count;
  }

 private:
  struct feature_arrays {
    feature_arrays(std::pmr::memory_resource* memory, index_t skew) noexcept
        : ids(memory, skew), weights(memory, skew), offsets(memory, skew) {}
    detail::grow_array<std::int64_t> ids;
    detail::grow_array<float> weights;
    detail::grow_array<std::int64_t> offsets;  // for bag_size::any
    index_t size = 0;                          // ids pushed, for bag_size::any
  };

  [[nodiscard]] bool reserve_ids(index_t s, index_t total, index_t kept) noexcept {
    feature_arrays& one = features_[static_cast<std::size_t>(s)];
    const bool weighted = shape_.weights == id_weights::present;
    const index_t held = one.ids.capacity();
    if (total <= held && (!weighted || held <= one.weights.capacity())) return true;
    const index_t target = total <= held ? held : (std::max)(total, held + held / 2);
    if (weighted && !one.weights.reserve(target, kept)) return false;  // never fewer than the ids
    return one.ids.reserve(target, kept);
  }

  [[nodiscard]] index_t ids_in(index_t s, index_t first, index_t count) const noexcept {
    if (count == 0) return 0;
    const std::int64_t* offsets = features_[static_cast<std::size_t>(s)].offsets.data();
    return offsets[first + count] - offsets[first];
  }

  template <class T>
  static void copy(T* to, const T* from, index_t count) noexcept {
    if (count > 0) std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
  }

  DEEPREC_PER_UNIT void copy_bags(feature_arrays& to, const feature_arrays& from, index_t row, index_t first,
                                  index_t count) const noexcept {
    if (count == 0) return;
    index_t begin = first;
    index_t ids = count;
    index_t target = row;
    if (shape_.bags == bag_size::any) {
      begin = from.offsets.data()[first];
      ids = from.offsets.data()[first + count] - begin;
      target = to.size;
      const index_t shift = to.size - begin;
      for (index_t r = 1; r <= count; ++r) {
        to.offsets.data()[row + r] = from.offsets.data()[first + r] + shift;
      }
      to.size += ids;
    }
    copy(to.ids.data() + target, from.ids.data() + begin, ids);
    if (shape_.weights == id_weights::present) {
      copy(to.weights.data() + target, from.weights.data() + begin, ids);
    }
  }

  batch_shape shape_;
  index_t rows_ = 0;
  std::pmr::memory_resource* memory_;
  detail::grow_array<float> labels_;
  detail::grow_array<float> dense_;
  detail::grow_array<std::int64_t> ones_;  // 0, 1, 2 ...: the offsets of bags of one id
  detail::extra_arrays extras_;
  std::vector<feature_arrays> features_;
};

}}  // namespace deeprec::DEEPREC_ABI
