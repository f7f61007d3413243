// The default executor: a fixed set of workers for bulk work, and threads on demand for tasks that
// may block. Any framework's own pool does as well (core/executor.hpp); this one is for who has none.
//
//   parallel_for(n, grain, body)     the caller is worker 0 and works too; workers 1 .. c-1 join in
//   post(task)                       runs on a thread of its own kind, so that a blocked task never
//                                    holds up bulk work or another task
//
// Nested parallel_for calls are safe: a caller always finishes its own pieces, and waits only for
// pieces that somebody is already running. Not here: work stealing, priorities, task graphs.
#pragma once

#include <sched.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/executor.hpp>

namespace deeprec::inline DEEPREC_ABI {

namespace detail {

/// An affinity mask of as many processors as it is made for; a cpu_set_t alone has 1024.
class cpu_mask {
 public:
  explicit cpu_mask(int cpus) noexcept : mask_(CPU_ALLOC(cpus)), bytes_(CPU_ALLOC_SIZE(cpus)) {
    if (mask_ != nullptr) CPU_ZERO_S(bytes_, mask_);
  }
  cpu_mask(const cpu_mask&) = delete;
  cpu_mask& operator=(const cpu_mask&) = delete;
  ~cpu_mask() { CPU_FREE(mask_); }

  /// Null where there was no memory.
  [[nodiscard]] cpu_set_t* data() const noexcept { return mask_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] int cpus() const noexcept { return static_cast<int>(8 * bytes_); }
  void insert(int cpu) noexcept { CPU_SET_S(static_cast<std::size_t>(cpu), bytes_, mask_); }
  [[nodiscard]] bool has(int cpu) const noexcept {
    return CPU_ISSET_S(static_cast<std::size_t>(cpu), bytes_, mask_) != 0;
  }

 private:
  cpu_set_t* mask_;
  std::size_t bytes_;
};

/// The processors in the mask that get_affinity(bytes, mask) fills in as sched_getaffinity does: a
/// mask that is too small for the system's is refused with EINVAL.
template <class GetAffinity>
std::vector<int> cpus_of_affinity(const GetAffinity& get_affinity) {
  constexpr int most = 1 << 22;
  std::vector<int> found;
  for (int size = CPU_SETSIZE; size <= most; size *= 2) {
    const cpu_mask mask(size);
    if (mask.data() == nullptr) break;
    if (get_affinity(mask.bytes(), mask.data()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    for (int cpu = 0; cpu < mask.cpus(); ++cpu) {
      if (mask.has(cpu)) found.push_back(cpu);
    }
    break;
  }
  if (found.empty()) found.push_back(0);
  return found;
}

}  // namespace detail

/// The processors that this process may run on (its affinity mask), in order, however many.
///
/// @cost    one system call; some where the system has more than 1024 processors
/// @threads thread-safe
/// @error   none; {0} where the system doesn't say
inline std::vector<int> usable_cpus() {
  return detail::cpus_of_affinity([](std::size_t bytes, cpu_set_t* mask) {
    return sched_getaffinity(0, bytes, mask);
  });
}

enum class pinning : unsigned char {
  none,      ///< the scheduler places workers anywhere in the affinity mask
  one_each,  ///< worker i runs on processor i of the mask, round robin; the caller is left alone
};

struct thread_pool_options {
  int threads = 0;  ///< concurrency(), the caller included; 0: as many as usable_cpus()
  pinning pin = pinning::none;
  std::chrono::microseconds spin{20};  ///< how long an idle worker looks for work before it sleeps
};

/// Bulk and task executor.
///
/// @threads parallel_for and post may be called from any thread, from bodies and tasks as well
class thread_pool {
 public:
  explicit thread_pool(int threads = 0) : thread_pool(thread_pool_options{.threads = threads}) {}

  explicit thread_pool(const thread_pool_options& options)
      : cpus_(usable_cpus()),
        concurrency_(options.threads > 0 ? options.threads : static_cast<int>(cpus_.size())),
        spin_(cpus_.size() > 1 ? options.spin : std::chrono::microseconds{0}) {
    workers_.reserve(static_cast<std::size_t>(concurrency_ - 1));
#if DEEPREC_EXCEPTIONS
    try {
      start_workers(options.pin);
    } catch (...) {  // the system refused a thread: end those that run
      stop_workers();
      throw;
    }
#else
    start_workers(options.pin);
#endif
  }

  /// Triggers the stop tokens of posted tasks, waits for them and for what they still post, then joins
  /// everything.
  ~thread_pool() {
    stop_tasks_.request_stop();
    {
      std::unique_lock lock(task_mutex_);
      task_done_.wait(lock, [&] { return unfinished_tasks_ == 0; });
      closing_tasks_ = true;
    }
    task_arrived_.notify_all();
    for (std::thread& thread : task_threads_) thread.join();
    stop_workers();
#if DEEPREC_EXCEPTIONS
    if (task_failure_) {
      std::fputs("deeprec::thread_pool: a posted task threw, and nobody called wait_tasks()\n",
                 stderr);
    }
#endif
  }

  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;

  [[nodiscard]] int concurrency() const noexcept { return concurrency_; }
  /// The affinity mask that the pool saw when it was made.
  [[nodiscard]] const std::vector<int>& cpus() const noexcept { return cpus_; }

  /// Calls body(begin, end, worker) for [0, n) in pieces of `grain` (the last may be shorter).
  ///
  /// @pre     grain > 0; bodies don't wait for each other
  /// @cost    no allocation; about 0.1 us when n <= grain, some us to bring others in
  /// @threads thread-safe; may be nested
  /// @error   when bodies throw, the exception of the smallest begin is rethrown here, once no body
  ///          runs any more; pieces that had not begun are dropped
  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) {
    DEEPREC_EXPECTS(grain > 0);
    if (n <= 0) return;
    const int self = worker_of(this);
    if (n <= grain || concurrency_ == 1) {
      for (index_t begin = 0; begin < n; begin += grain) {
        body(begin, n - begin > grain ? begin + grain : n, self);
      }
      return;
    }
    using plain_body = std::remove_reference_t<Body>;
    bulk_job job;
    job.call = [](const void* callee, index_t begin, index_t end, int worker) {
      (*static_cast<plain_body*>(const_cast<void*>(callee)))(begin, end, worker);
    };
    job.body = std::addressof(body);
    job.n = n;
    job.grain = grain;
    {
      std::lock_guard lock(mutex_);
      job.previous = last_job_;
      if (last_job_ != nullptr) last_job_->next_job = &job;
      last_job_ = &job;
      epoch_.fetch_add(1, std::memory_order_release);
    }
    if (sleepers_.load(std::memory_order_seq_cst) > 0) work_arrived_.notify_all();
    run_pieces(job, self);
    {
      std::unique_lock lock(mutex_);
      (job.next_job != nullptr ? job.next_job->previous : last_job_) = job.previous;
      if (job.previous != nullptr) job.previous->next_job = job.next_job;
      helper_left_.wait(lock, [&] { return job.helpers == 0; });
    }
#if DEEPREC_EXCEPTIONS
    if (job.failure) std::rethrow_exception(job.failure);
#endif
  }

  /// Runs task(stop_token) on a thread that may block. The token is triggered by `stop` and by the
  /// pool's destructor. A task that has not begun when the pool is destroyed still runs.
  ///
  /// @cost    an allocation; a new thread (about 20 us) when no task thread is idle
  /// @threads thread-safe
  /// @error   what a task throws is kept: the first is rethrown by wait_tasks(). Throws
  ///          std::system_error when a thread is needed and the system refuses it
  template <class Task>
  void post(Task task, std::stop_token stop = {}) {
    auto entry = std::make_unique<posted<Task>>(std::move(task), std::move(stop),
                                                stop_tasks_.get_token());
    std::lock_guard lock(task_mutex_);
    // The thread first: where the system refuses it, nothing is queued.
    if (static_cast<std::size_t>(idle_task_threads_) <= tasks_.size()) {
      task_threads_.emplace_back([this] { run_tasks(); });
    } else {
      task_arrived_.notify_one();
    }
    tasks_.push_back(std::move(entry));
    ++unfinished_tasks_;
  }

  /// Waits until no posted task is left, then rethrows the first exception that one threw.
  ///
  /// @pre     not called from a task
  /// @cost    blocks
  /// @threads thread-safe
  /// @error   rethrows
  void wait_tasks() {
    std::unique_lock lock(task_mutex_);
    task_done_.wait(lock, [&] { return unfinished_tasks_ == 0; });
#if DEEPREC_EXCEPTIONS
    if (std::exception_ptr failure = std::exchange(task_failure_, nullptr)) {
      std::rethrow_exception(failure);
    }
#endif
  }

 private:
  // One parallel_for in flight, on the stack of its caller. `cursor` hands out pieces in order;
  // everything else is written under mutex_.
  struct bulk_job {
    void (*call)(const void*, index_t, index_t, int) = nullptr;
    const void* body = nullptr;
    index_t n = 0;
    index_t grain = 1;
    std::atomic<index_t> cursor{0};  // relaxed: a piece number carries no data with it
    std::atomic<bool> failed{false};
    int helpers = 0;
    bulk_job* previous = nullptr;
    bulk_job* next_job = nullptr;
    std::exception_ptr failure;
    index_t failed_at = 0;
  };

  struct posted_task {
    virtual ~posted_task() = default;
    virtual void run() = 0;
  };
  template <class Task>
  struct posted final : posted_task {
    struct trigger {
      std::stop_source* source;
      void operator()() const noexcept { source->request_stop(); }
    };
    posted(Task t, std::stop_token user, std::stop_token pool)
        : task(std::move(t)),
          on_user(std::move(user), trigger{&source}),
          on_pool(std::move(pool), trigger{&source}) {}
    void run() override { task(source.get_token()); }
    std::stop_source source;
    Task task;
    std::stop_callback<trigger> on_user;
    std::stop_callback<trigger> on_pool;
  };

  // Which worker of which pool the current thread is.
  struct identity {
    const thread_pool* pool = nullptr;
    int worker = 0;
  };
  static identity& this_thread() noexcept {
    static thread_local identity who;
    return who;
  }
  static int worker_of(const thread_pool* pool) noexcept {
    const identity& who = this_thread();
    return who.pool == pool ? who.worker : 0;
  }

  static void pin_this_thread(int cpu) noexcept {
    detail::cpu_mask mask(cpu + 1);
    if (mask.data() == nullptr) return;
    mask.insert(cpu);
    sched_setaffinity(0, mask.bytes(), mask.data());  // refused: the worker just stays unpinned
  }

  void start_workers(pinning pin) {
    for (int id = 1; id < concurrency_; ++id) {
      workers_.emplace_back([this, id, pin] {
        if (pin == pinning::one_each) {
          pin_this_thread(cpus_[static_cast<std::size_t>(id) % cpus_.size()]);
        }
        work(id);
      });
    }
  }
  void stop_workers() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      epoch_.fetch_add(1, std::memory_order_relaxed);
    }
    work_arrived_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  static void relax() noexcept {
#if DEEPREC_X86
    __builtin_ia32_pause();
#endif
  }

  void run_pieces(bulk_job& job, int worker) {
    while (!job.failed.load(std::memory_order_relaxed)) {
      const index_t begin = job.cursor.fetch_add(job.grain, std::memory_order_relaxed);
      if (begin >= job.n) return;
      const index_t end = job.n - begin > job.grain ? begin + job.grain : job.n;
#if DEEPREC_EXCEPTIONS
      try {
        job.call(job.body, begin, end, worker);
      } catch (...) {
        std::lock_guard lock(mutex_);
        if (!job.failure || begin < job.failed_at) {
          job.failure = std::current_exception();
          job.failed_at = begin;
        }
        job.failed.store(true, std::memory_order_relaxed);
      }
#else
      job.call(job.body, begin, end, worker);
#endif
    }
  }

  // The newest job with pieces left: inner loops finish before outer ones go on. Needs mutex_.
  bulk_job* find_job() const noexcept {
    for (bulk_job* job = last_job_; job != nullptr; job = job->previous) {
      if (job->cursor.load(std::memory_order_relaxed) < job->n &&
          !job->failed.load(std::memory_order_relaxed)) {
        return job;
      }
    }
    return nullptr;
  }

  void work(int id) {
    this_thread() = {this, id};
    std::unique_lock lock(mutex_);
    while (true) {
      if (bulk_job* job = find_job()) {
        ++job->helpers;
        lock.unlock();
        run_pieces(*job, id);
        lock.lock();
        if (--job->helpers == 0) helper_left_.notify_all();  // job dies when its caller sees 0
        continue;
      }
      if (stopping_) return;
      const std::uint64_t seen = epoch_.load(std::memory_order_relaxed);
      lock.unlock();
      const bool changed = spin_until_epoch_leaves(seen);
      lock.lock();
      if (changed) continue;
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      work_arrived_.wait(lock, [&] { return epoch_.load(std::memory_order_relaxed) != seen; });
      sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }
  }

  bool spin_until_epoch_leaves(std::uint64_t seen) const noexcept {
    if (spin_.count() == 0) return false;
    const auto give_up = std::chrono::steady_clock::now() + spin_;
    do {
      for (int i = 0; i < 32; ++i) {
        if (epoch_.load(std::memory_order_acquire) != seen) return true;
        relax();
      }
    } while (std::chrono::steady_clock::now() < give_up);
    return false;
  }

  void run_tasks() {
    std::unique_lock lock(task_mutex_);
    while (true) {
      ++idle_task_threads_;
      task_arrived_.wait(lock, [&] { return !tasks_.empty() || closing_tasks_; });
      --idle_task_threads_;
      if (tasks_.empty()) return;
      std::unique_ptr<posted_task> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
#if DEEPREC_EXCEPTIONS
      std::exception_ptr failure;
      try {
        task->run();
      } catch (...) {
        failure = std::current_exception();
      }
      task.reset();
      lock.lock();
      if (failure && !task_failure_) task_failure_ = failure;
#else
      task->run();
      task.reset();
      lock.lock();
#endif
      if (--unfinished_tasks_ == 0) task_done_.notify_all();
    }
  }

  const std::vector<int> cpus_;
  const int concurrency_;
  const std::chrono::microseconds spin_;

  // Bulk work. A caller publishes a job and raises epoch_ under mutex_; a worker decides to sleep under
  // mutex_ after it saw the same epoch_ there, so no job is missed. notify outside the lock is safe for
  // the same reason. sleepers_ only saves the system call when nobody sleeps.
  std::mutex mutex_;
  std::condition_variable work_arrived_;
  std::condition_variable helper_left_;
  std::atomic<std::uint64_t> epoch_{0};
  std::atomic<int> sleepers_{0};
  bulk_job* last_job_ = nullptr;
  bool stopping_ = false;
  std::vector<std::thread> workers_;

  // Tasks.
  std::mutex task_mutex_;
  std::condition_variable task_arrived_;
  std::condition_variable task_done_;
  std::deque<std::unique_ptr<posted_task>> tasks_;
  std::vector<std::thread> task_threads_;
  std::stop_source stop_tasks_;
  std::exception_ptr task_failure_;
  index_t unfinished_tasks_ = 0;
  int idle_task_threads_ = 0;
  bool closing_tasks_ = false;
};

static_assert(BulkExecutor<thread_pool> && TaskExecutor<thread_pool>);

}  // namespace deeprec::inline DEEPREC_ABI
