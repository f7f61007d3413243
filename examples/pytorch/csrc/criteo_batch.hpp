// A batch of Criteo's rows whose ids lie in one block, and the pool that batches return to.
//
//   labels (B)   dense (B, 13)   ids (26, B), feature after feature: the values of a KeyedJaggedTensor
//
//   pool ── take ──> filled ──> tensors ── the last one is dropped ──> pool
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/data/criteo_format.hpp>
#include <deeprec/data/sparse_batch.hpp>

namespace deeprec_torch {

using deeprec::index_t;

/// Memory of a sparse_batch, which has an array for each feature, with unused bytes in front of the ids. Here
/// each array ends where the ids of its feature do, and its unused bytes lie over ids before it:
///
///   block     | margin | ids of C1 | ids of C2 | ids of C3 |
///   array C3         |~~~~ unused ~~~~~~~~~~~~~| ids of C3 |
class ids_in_a_block final : public std::pmr::memory_resource {
 public:
  static constexpr std::size_t margin = 4096;  // no array has more unused bytes

  ids_in_a_block(index_t features, index_t rows)
      : ids_bytes_(static_cast<std::size_t>(rows) * sizeof(std::int64_t)),
        bytes_(margin + static_cast<std::size_t>(features) * ids_bytes_),
        block_(static_cast<std::byte*>(rest_->allocate(bytes_, alignment))),
        end_(block_ + margin) {}
  ~ids_in_a_block() override { rest_->deallocate(block_, bytes_, alignment); }
  ids_in_a_block(const ids_in_a_block&) = delete;
  ids_in_a_block& operator=(const ids_in_a_block&) = delete;

  /// From here on an allocation is the array of the next feature; those before come from the heap.
  void begin_ids() noexcept { in_block_ = true; }
  [[nodiscard]] std::int64_t* ids() const noexcept {
    return static_cast<std::int64_t*>(static_cast<void*>(block_ + margin));
  }

 private:
  static constexpr std::size_t alignment = 64;

  void* do_allocate(std::size_t bytes, std::size_t aligned) override {
    if (!in_block_) return rest_->allocate(bytes, aligned);
    if (bytes < ids_bytes_ || bytes > ids_bytes_ + margin || end_ + ids_bytes_ > block_ + bytes_) {
      throw std::bad_alloc();
    }
    end_ += ids_bytes_;
    return end_ - bytes;
  }
  void do_deallocate(void* given, std::size_t bytes, std::size_t aligned) override {
    const std::less<const void*> before;
    if (before(given, block_) || !before(given, block_ + bytes_)) rest_->deallocate(given, bytes, aligned);
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }

  std::pmr::memory_resource* rest_ = std::pmr::new_delete_resource();
  std::size_t ids_bytes_;  // of one feature
  std::size_t bytes_;
  std::byte* block_;
  std::byte* end_;  // of the last array
  bool in_block_ = false;
};

/// At most `most` rows.
class criteo_batch {
 public:
  static constexpr deeprec::batch_shape shape = deeprec::criteo_format::shape();

  explicit criteo_batch(index_t most) : most_(most), memory_(shape.features, most), rows_(&memory_) {
    deeprec::batch_shape without_ids = shape;
    without_ids.features = 0;
    reserve(without_ids);
    memory_.begin_ids();
    reserve(shape);
    for (index_t f = 0; f < shape.features; ++f) {
      if (rows_.next_id(f) != memory_.ids() + f * most)
        throw std::logic_error("CriteoReader: the ids of a sparse_batch must lie in one block");
    }
  }
  criteo_batch(const criteo_batch&) = delete;
  criteo_batch& operator=(const criteo_batch&) = delete;

  /// Bytes of a batch, about: the offsets that a sparse_batch has are among them.
  static constexpr std::size_t bytes(index_t most) noexcept {
    return ids_in_a_block::margin +
           static_cast<std::size_t>(most) *
               (sizeof(float) * (1 + shape.dense_columns) + sizeof(std::int64_t) * (1 + shape.features));
  }

  /// Has the reader write the next rows; the number of rows, 0 at the end.
  template <class Reader>
  deeprec::result<index_t> fill(Reader& reader) {
    auto read = reader.next(rows_, most_);
    if (read && read.value() > 0 && read.value() < most_) {
      // The ids of fewer rows are moved together.
      for (index_t f = 1; f < shape.features; ++f) {
        std::memmove(memory_.ids() + f * read.value(), memory_.ids() + f * most_,
                     static_cast<std::size_t>(read.value()) * sizeof(std::int64_t));
      }
    }
    return read;
  }

  [[nodiscard]] deeprec::matrix_view<float> labels() noexcept {
    return {const_cast<float*>(rows_.labels().data()), 1, rows_.rows()};
  }
  [[nodiscard]] deeprec::matrix_view<float> dense() noexcept { return rows_.dense(); }
  /// (26, rows)
  [[nodiscard]] deeprec::matrix_view<std::int64_t> ids() noexcept {
    return {memory_.ids(), shape.features, rows_.rows()};
  }

 private:
  void reserve(const deeprec::batch_shape& of) {
    rows_.reshape(of);
    if (!rows_.reserve_rows(most_)) throw std::bad_alloc();
  }

  index_t most_;
  ids_in_a_block memory_;
  deeprec::sparse_batch rows_;
};

/// The batches of a reader. Outlives the reader while a tensor has one of them.
///
/// The lock and the condition are the reader's as well: whoever changes anything that it waits for notifies.
class batch_pool {
 public:
  /// @param most_batches 0: no limit
  /// @param kept         batches that are kept for later
  batch_pool(index_t batch_size, std::size_t most_batches, std::size_t kept)
      : batch_size_(batch_size), most_batches_(most_batches), kept_(kept) {
    free_.reserve(kept);
  }

  std::mutex mutex;
  std::condition_variable changed;

  // Under the lock:
  [[nodiscard]] bool has_room() const noexcept {
    return !free_.empty() || most_batches_ == 0 || count_ < most_batches_;
  }
  [[nodiscard]] deeprec::fault no_room() const {
    return {deeprec::errc::out_of_memory,
            "CriteoReader.next: the batches in use must leave room within max_bytes (" +
                std::to_string(count_) + " of " + std::to_string(criteo_batch::bytes(batch_size_)) +
                " bytes are in use)"};
  }
  /// No batch is kept any more.
  void close() noexcept {
    kept_ = 0;
    count_ -= free_.size();
    free_.clear();
  }

  // Without the lock:
  /// @pre has_room(), and no other thread takes a batch
  std::unique_ptr<criteo_batch> take() {
    {
      const std::scoped_lock lock(mutex);
      if (!free_.empty()) {
        std::unique_ptr<criteo_batch> last = std::move(free_.back());
        free_.pop_back();
        return last;
      }
    }
    auto made = std::make_unique<criteo_batch>(batch_size_);
    const std::scoped_lock lock(mutex);
    ++count_;
    return made;
  }
  void give_back(std::unique_ptr<criteo_batch> batch) noexcept {
    if (is_copy()) {
      static_cast<void>(batch.release());
      return;
    }
    {
      const std::scoped_lock lock(mutex);
      if (free_.size() < kept_) {
        free_.push_back(std::move(batch));
      } else {
        --count_;
      }
    }
    changed.notify_all();
  }
  /// Whether this process was forked off the reader's: it has none of the threads, and the lock may be held
  /// forever.
  [[nodiscard]] bool is_copy() const noexcept { return ::getpid() != process_; }

 private:
  const pid_t process_ = ::getpid();
  const index_t batch_size_;
  const std::size_t most_batches_;
  std::size_t kept_;
  std::size_t count_ = 0;
  std::vector<std::unique_ptr<criteo_batch>> free_;
};

}  // namespace deeprec_torch
