// A thread that keeps tables at the newest checkpoint of a folder, while others look rows up.
//
//   checkpoint_reader files("/models/ctr");
//   files.add("items", items).or_throw();
//   files.add(name_table("w0", as_table(staged))).or_throw();    dense values: into memory that only it
//                                                                writes
//   delta_follower follower(files, {.every = 5s, .applied = [&](const checkpoint_reader& now) {
//     models.publish(std::make_unique<dense_part>(staged, now.state()));      a versioned<dense_part>
//   }});
//
// Rows of growing tables are replaced one by one; dense values are whole when `applied` is called, and become
// visible to readers when it publishes them. Where a chain is broken the next full file is taken.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_options.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_reader.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

struct follower_options {
  std::chrono::milliseconds every{1000};  ///< between two polls
  /// Called on the follower's thread after a poll that applied files, before the next one. Must not throw.
  std::function<void(const checkpoint_reader&)> applied;
};

/// What a follower has done.
struct follower_report {
  index_t polls = 0;
  index_t applied = 0;  ///< polls that applied files
  index_t failed = 0;   ///< polls that returned a fault
  checkpoint_position at;
  std::uint64_t step = 0;   ///< of the training, in the last file
  std::string last_fault;   ///< of the last poll that failed
  std::string passed_over;  ///< the first file that the last poll passed over, and why; empty: none
};

/// @threads report and poll_now: thread-safe. Nobody else uses the checkpoint_reader while it exists
class delta_follower {
 public:
  /// @pre files, and its tables, outlive the follower
  explicit delta_follower(checkpoint_reader& files, follower_options options = {})
      : files_(&files), options_(std::move(options)), thread_([this] { run(); }) {}
  delta_follower(const delta_follower&) = delete;
  delta_follower& operator=(const delta_follower&) = delete;
  /// Waits for a poll that goes on.
  ~delta_follower() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  [[nodiscard]] follower_report report() const {
    const std::lock_guard lock(mutex_);
    return report_;
  }
  /// Polls without waiting for the next time.
  void poll_now() {
    {
      const std::lock_guard lock(mutex_);
      is_wanted_ = true;
    }
    wake_.notify_all();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!ends_) {
      is_wanted_ = false;
      lock.unlock();
      const auto polled = files_->poll();
      if (polled && polled.value() && options_.applied) options_.applied(*files_);
      lock.lock();
      ++report_.polls;
      report_.applied += polled && polled.value() ? 1 : 0;
      report_.failed += polled ? 0 : 1;
      if (!polled) report_.last_fault = polled.message();
      report_.at = files_->position();
      report_.step = files_->state().step;
      report_.passed_over = files_->passed_over().empty() ? "" : files_->passed_over().front().message();
      wake_.wait_for(lock, options_.every, [this] { return ends_ || is_wanted_; });
    }
  }

  checkpoint_reader* files_;
  follower_options options_;
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable wake_;
  bool ends_ = false;
  bool is_wanted_ = false;
  follower_report report_;
  std::thread thread_;  // last: it begins when the others are there
};

}}  // namespace deeprec::DEEPREC_ABI
