// Reads batches of Criteo's files ahead, on threads of its own.
//
//   files ──parsed on the threads──> [ b3 | b4 | b5 ] ──next()──> caller
//                                     at most `prefetch`; 0: next() reads itself
//
// Faults arrive in the order of the rows, and stay.
#pragma once

#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/result.hpp>
#include <deeprec/core/task_handle.hpp>
#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/criteo_format.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "criteo_batch.hpp"

namespace deeprec_torch {

struct ahead_options {
  index_t batch_size = 1;
  int threads = 0;            ///< that parse; 0: as many as the process may use
  std::size_t prefetch = 0;   ///< batches
  std::size_t max_bytes = 0;  ///< of all batches, those in use included, at least of one; 0: no limit
  deeprec::malformed on_malformed = deeprec::malformed::fault;
};

/// @threads every member is thread-safe
class criteo_ahead {
 public:
  using batch_or_end = std::unique_ptr<criteo_batch>;  // null at the end

  struct skipped_lines {
    index_t count = 0;
    std::string first;  ///< what is wrong with the first of them
  };

  /// @error throws deeprec::error: what read_files() and post() return
  criteo_ahead(std::vector<std::string> paths, const deeprec::criteo_format& format,
               const ahead_options& options)
      : prefetch_(options.prefetch),
        batches_(std::make_shared<batch_pool>(
            options.batch_size, options.max_bytes / criteo_batch::bytes(options.batch_size), prefetch_ + 2)),
        has_ended_(paths.empty()) {
    if (has_ended_) return;  // without threads
    work_ = std::make_unique<work>(std::move(paths), format, options);
    if (prefetch_ == 0) return;
    work_->threads.post([this] { read_ahead(); }, std::stop_token(), work_->ahead).or_throw();
  }
  ~criteo_ahead() { close(); }
  criteo_ahead(const criteo_ahead&) = delete;
  criteo_ahead& operator=(const criteo_ahead&) = delete;

  [[nodiscard]] const std::shared_ptr<batch_pool>& batches() const noexcept { return batches_; }

  /// Waits for the next batch.
  ///
  /// @error the reader's; out_of_memory: max_bytes are in use, and a later call goes on; closed
  deeprec::result<batch_or_end> next() {
    std::unique_lock lock(batches_->mutex);
    while (true) {
      if (is_closed_)
        return deeprec::fault(deeprec::errc::closed, "CriteoReader.next: the reader must be open");
      if (!ready_.empty()) {
        batch_or_end first = std::move(ready_.front());
        ready_.pop_front();
        batches_->changed.notify_all();
        return first;
      }
      if (fault_) return *fault_;
      if (has_ended_) return batch_or_end();
      if (!is_reading_ && !batches_->has_room()) return batches_->no_room();
      if (!is_reading_ && prefetch_ == 0) {
        read(lock);
      } else {
        batches_->changed.wait(lock);
      }
    }
  }

  /// Bad lines among those that were read.
  [[nodiscard]] skipped_lines skipped() {
    const std::scoped_lock lock(batches_->mutex);
    return skipped_;
  }

  /// Ends the threads and closes the files. Batches that were delivered stay.
  void close() {
    std::unique_ptr<work> ended;
    std::deque<batch_or_end> dropped;
    {
      std::unique_lock lock(batches_->mutex);
      if (is_closed_) return;
      is_closed_ = true;
      batches_->close();
      batches_->changed.notify_all();
      batches_->changed.wait(lock, [this] { return !is_reading_; });
      dropped.swap(ready_);
      ended = std::move(work_);
    }
    for (batch_or_end& batch : dropped) batches_->give_back(std::move(batch));
  }

 private:
  struct work {
    work(std::vector<std::string> paths, const deeprec::criteo_format& format, const ahead_options& options)
        : threads(options.threads),
          reader(
              deeprec::read_files(threads, format, std::move(paths), {.on_malformed = options.on_malformed})
                  .or_throw()) {}

    deeprec::thread_pool threads;
    deeprec::batch_reader<deeprec::criteo_format, deeprec::thread_pool> reader;
    deeprec::task_handle ahead;
  };

  void read_ahead() {
    std::unique_lock lock(batches_->mutex);
    while (true) {
      batches_->changed.wait(lock, [this] {
        return is_closed_ || (!is_reading_ && ready_.size() < prefetch_ && batches_->has_room());
      });
      if (is_closed_ || has_ended_ || fault_) return;
      read(lock);
    }
  }

  /// @pre the lock is held, no other thread reads, and the pool has room
  void read(std::unique_lock<std::mutex>& lock) {
    is_reading_ = true;
    lock.unlock();
    batch_or_end batch;
    const deeprec::result<index_t> rows = fill(batch);
    const index_t skipped = work_->reader.skipped_lines();
    std::string first_skipped;
    if (skipped > 0) first_skipped = work_->reader.first_skipped().front().message();
    const bool has_rows = rows && rows.value() > 0;
    if (batch != nullptr && !has_rows) batches_->give_back(std::move(batch));
    lock.lock();
    is_reading_ = false;
    skipped_ = {skipped, std::move(first_skipped)};
    if (has_rows) {
      ready_.push_back(std::move(batch));
    } else if (rows) {
      has_ended_ = true;
    } else {
      fault_ = rows.fault();
    }
    batches_->changed.notify_all();
  }
  deeprec::result<index_t> fill(batch_or_end& batch) {
    try {
      batch = batches_->take();
      return batch->fill(work_->reader);
    } catch (const std::bad_alloc&) {
      return deeprec::fault(deeprec::errc::out_of_memory,
                            "CriteoReader.next: there must be memory for a batch");
    } catch (const std::exception& thrown) {
      return deeprec::fault(deeprec::errc::producer_failed, thrown.what());
    }
  }

  const std::size_t prefetch_;
  const std::shared_ptr<batch_pool> batches_;
  std::unique_ptr<work> work_;

  // Under the pool's lock:
  std::deque<batch_or_end> ready_;
  std::optional<deeprec::fault> fault_;
  skipped_lines skipped_;
  bool is_reading_ = false;
  bool has_ended_;
  bool is_closed_ = false;
};

}  // namespace deeprec_torch
