// A trace sink that records spans, writes them as JSON for Perfetto and chrome://tracing, and says what each
// op or verb cost.
//
//   trace_recorder trace({.threads = 4, .spans = 100'000});       memory for all of it, now
//   context ctx{pool};  ctx.trace = &trace;
//   run_inline(ctx, plan);                        thread 0   |read|hash|hash|lookup    |
//   std::ofstream("step.json") << trace.json();                            |gather|
//   for (const trace_cost& c : trace.costs()) ... c.name, c.median_ns
//
// Recording takes no lock and no memory: what finds no place is counted in dropped(). The time of work on a
// device comes by add(), from cuda_stream_pool::add_spans; spans of verbs on a stream are those of their
// enqueueing. Not here: sampling.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory_resource>
#include <mutex>
#include <new>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/trace.hpp>
#include <deeprec/plan/detail/span_buffer.hpp>
#include <deeprec/plan/detail/tick_clock.hpp>
#include <deeprec/plan/detail/trace_text.hpp>
#include <deeprec/plan/task_plan.hpp>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

struct trace_options {
  int threads = 16;         ///< the most that record
  index_t spans = 1 << 14;  ///< of each thread: 48 bytes each
  std::pmr::memory_resource* memory = std::pmr::get_default_resource();
};

/// One span that has ended. Nanoseconds since the recorder was made.
struct trace_span {
  const char* name;
  index_t op;  ///< of a plan; -1: a verb
  index_t bytes;
  int stream;  ///< -1: none
  int thread;  ///< in the order of their first span, from 0; -1: added, for a stream
  int depth;   ///< spans around it on its thread
  std::int64_t begin;
  std::int64_t end;
};

/// What an op or a verb cost: one entry for each name and op number.
struct trace_cost {
  const char* name;
  index_t op;  ///< -1: a verb
  index_t count;
  index_t bytes;  ///< of one
  double mean_ns;
  double median_ns;
  double total_ns;
};

/// Records the spans of the threads that use it. It keeps the pointers to names: plans outlive the reading.
///
/// @threads recording: thread-safe. Reading (spans, costs, json) while others record: thread-safe, and sees
///          the spans that have ended. clear: while nobody records
class trace_recorder final : public trace_sink {
 public:
  /// @cost    one allocation of 48 bytes for each span of each thread, which is written once
  /// @threads reentrant
  /// @error   throws what the resource throws
  explicit trace_recorder(const trace_options& options = {})
      : spans_((std::max)(index_t{0}, options.spans)),
        block_(options.memory, room(options)),
        buffers_(block_.take<buffer>(threads_of(options))) {
    for (buffer& b : buffers_) {
      ::new (&b) buffer();
      b.spans = block_.take<record>(spans_);
      for (record& r : b.spans) ::new (&r) record();
    }
  }
  trace_recorder(const trace_recorder&) = delete;
  trace_recorder& operator=(const trace_recorder&) = delete;
  ~trace_recorder() = default;

  void begin(const char* verb) noexcept override { open({verb, -1, 0, -1}); }
  void end(const char*) noexcept override { close(); }
  void begin_op(const traced_op& op) noexcept override { open(op); }
  void end_op(const traced_op&) noexcept override { close(); }
  void next_op(const traced_op&, const traced_op& begun) noexcept override {
    buffer* const mine = mine_or_null();
    if (mine == nullptr) return drop();
    const std::int64_t now = clock_.now();
    mine->close(now);
    mine->open(begun, now);
  }

  /// The name of the calling thread in the JSON, at most 31 bytes; else "thread 0", "thread 1", ...
  ///
  /// @cost    a copy
  /// @threads thread-safe; before anybody reads
  /// @error   none
  void name_thread(std::string_view name) noexcept {
    buffer* const mine = mine_or_null();
    if (mine == nullptr) return;
    const std::size_t n = (std::min)(name.size(), mine->name.size() - 1);
    std::copy_n(name.begin(), n, mine->name.begin());
    mine->name[n] = '\0';
  }

  /// The time that a span would begin with now.
  ///
  /// @cost    waits up to a millisecond after the recorder was made, as spans()
  /// @threads thread-safe
  /// @error   none
  [[nodiscard]] std::int64_t now() const noexcept {
    return static_cast<std::int64_t>(static_cast<double>(clock_.now() - begun_) * nanoseconds_per_tick());
  }
  /// Adds a span that was measured elsewhere, in nanoseconds as of now(), negative ones as well. Streams have
  /// lines in the JSON.
  ///
  /// @pre     op.stream >= 0, begin <= end
  /// @cost    a lock; allocates
  /// @threads thread-safe
  /// @error   throws std::bad_alloc
  void add(const traced_op& op, std::int64_t begin, std::int64_t end) {
    DEEPREC_EXPECTS(op.stream >= 0 && begin <= end);
    const std::lock_guard lock(added_mutex_);
    added_.push_back({op.name, op.op, op.bytes, op.stream, -1, 0, begin, end});
  }

  /// Spans that found no place: too many on a thread, nested deeper than 62, or of too many threads.
  [[nodiscard]] std::uint64_t dropped() const noexcept {
    std::uint64_t all = homeless_.load(std::memory_order_relaxed);
    for (const buffer& b : buffers_) all += b.dropped.load(std::memory_order_relaxed);
    return all;
  }

  /// Every span that has ended, thread by thread, in the order in which they began; then those added.
  ///
  /// @cost    O(spans); allocates. Waits up to a millisecond after the recorder was made: the unit of the
  ///          clock is measured
  /// @threads thread-safe
  /// @error   throws std::bad_alloc
  [[nodiscard]] std::vector<trace_span> spans() const {
    const double ns = nanoseconds_per_tick();
    const auto since = [&](std::int64_t ticks) {
      // A counter of another core may be some ticks behind.
      return static_cast<std::int64_t>(static_cast<double>((std::max)(std::int64_t{0}, ticks - begun_)) * ns);
    };
    std::vector<trace_span> all;
    for (int t = 0; t < threads(); ++t) {
      const buffer& b = buffers_[static_cast<std::size_t>(t)];
      const index_t used = b.used.load(std::memory_order_acquire);  // with open()
      for (const record& r : b.spans.first(static_cast<std::size_t>(used))) {
        const std::int64_t ended = r.end.load(std::memory_order_acquire);  // with close()
        if (ended == 0) continue;
        const std::int64_t from = since(r.begin);
        all.push_back({r.name, r.op, r.bytes, r.stream, t, r.depth, from, (std::max)(from, since(ended))});
      }
    }
    const std::lock_guard lock(added_mutex_);
    all.insert(all.end(), added_.begin(), added_.end());
    return all;
  }

  /// What was recorded, for each op of a plan and for each verb; the greatest total first.
  ///
  /// @cost    O(spans log spans); allocates
  /// @threads thread-safe
  /// @error   throws std::bad_alloc
  [[nodiscard]] std::vector<trace_cost> costs() const {
    std::vector<trace_span> all = spans();
    const auto key = [](const trace_span& s) { return std::tuple(std::string_view(s.name), s.op); };
    const auto took = [](const trace_span& s) { return detail::time_between(s.begin, s.end); };
    std::sort(all.begin(), all.end(), [&](const trace_span& a, const trace_span& b) {
      return key(a) != key(b) ? key(a) < key(b) : took(a) < took(b);
    });
    std::vector<trace_cost> made;
    for (std::size_t first = 0; first < all.size();) {
      std::size_t last = first;
      double total = 0;
      for (; last < all.size() && key(all[last]) == key(all[first]); ++last) {
        total += static_cast<double>(took(all[last]));
      }
      const trace_span& middle = all[(first + last) / 2];
      const auto count = static_cast<index_t>(last - first);
      made.push_back({middle.name, middle.op, count, middle.bytes, total / static_cast<double>(count),
                      static_cast<double>(took(middle)), total});
      first = last;
    }
    std::stable_sort(made.begin(), made.end(),
                     [](const trace_cost& a, const trace_cost& b) { return a.total_ns > b.total_ns; });
    return made;
  }

  /// The trace in the Chrome Trace Event format: one complete event for each span, the names of the process
  /// and the threads, and the number of dropped spans.
  ///
  /// @cost    O(spans); some 120 bytes for each
  /// @threads thread-safe
  /// @error   throws std::bad_alloc
  [[nodiscard]] std::string json(std::string_view process = "deeprec") const {
    const std::string pid = std::to_string(static_cast<long>(::getpid()));
    std::string out = "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"dropped\":" + std::to_string(dropped()) +
                      "},\"traceEvents\":[\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":" + pid +
                      ",\"tid\":0,\"args\":{\"name\":";
    detail::append_json(out, process);
    out += "}}";
    for (int t = 0; t < threads(); ++t) {
      const buffer& b = buffers_[static_cast<std::size_t>(t)];
      out += ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":" + pid + ",\"tid\":" + std::to_string(t) +
             ",\"args\":{\"name\":";
      detail::append_json(out,
                          b.name[0] != '\0' ? std::string(b.name.data()) : "thread " + std::to_string(t));
      out += "}}";
    }
    const std::vector<trace_span> all = spans();
    std::set<int> streams;
    for (const trace_span& s : all) {
      if (s.thread < 0 && streams.insert(s.stream).second) {
        const std::string number = std::to_string(s.stream);
        out += ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":" + pid +
               ",\"tid\":" + std::to_string(line_of(s)) + ",\"args\":{\"name\":\"stream " + number + "\"}}";
      }
    }
    for (const trace_span& s : all) {
      out += ",\n{\"ph\":\"X\",\"name\":";
      detail::append_json(out, s.name);
      out += s.op >= 0 ? ",\"cat\":\"op\"" : ",\"cat\":\"verb\"";
      out += ",\"pid\":" + pid + ",\"tid\":" + std::to_string(line_of(s)) + ",\"ts\":";
      detail::append_microseconds(out, s.begin < 0, detail::time_between(s.begin, 0));
      out += ",\"dur\":";
      detail::append_microseconds(out, false, detail::time_between(s.begin, s.end));
      const char* separator = ",\"args\":{";
      const auto argument = [&](const char* name, std::int64_t value) {
        out += separator;
        out += name + std::to_string(value);
        separator = ",";
      };
      if (s.op >= 0) argument("\"op\":", s.op);
      if (s.bytes > 0) argument("\"bytes\":", s.bytes);
      if (s.stream >= 0) argument("\"stream\":", s.stream);
      out += *(separator + 1) == '\0' ? "}}" : "}";
    }
    out += "\n]}\n";
    return out;
  }

  /// Forgets what was recorded; threads keep their numbers and names.
  ///
  /// @pre     no thread is between begin and end
  /// @cost    O(threads)
  /// @threads while nobody records or reads
  /// @error   none
  void clear() noexcept {
    for (buffer& b : buffers_) {
      b.used.store(0, std::memory_order_relaxed);
      b.dropped.store(0, std::memory_order_relaxed);
      b.depth = 0;
    }
    homeless_.store(0, std::memory_order_relaxed);
    const std::lock_guard lock(added_mutex_);
    added_.clear();
  }

 private:
  using record = detail::span_record;
  using buffer = detail::span_buffer;

  // Of the JSON: threads first, then streams.
  [[nodiscard]] int line_of(const trace_span& s) const noexcept {
    return s.thread >= 0 ? s.thread : static_cast<int>(buffers_.size()) + s.stream;
  }

  // The buffer that this thread used last, and whose it is.
  struct last_used {
    std::uint64_t recorder = 0;
    buffer* mine = nullptr;
  };
  static last_used& last() noexcept {
    thread_local last_used it;
    return it;
  }

  static index_t threads_of(const trace_options& options) noexcept {
    return (std::max)(index_t{1}, index_t{options.threads});
  }
  static index_t room(const trace_options& options) noexcept {
    const index_t spans = (std::max)(index_t{0}, options.spans);
    return capped_sum(detail::scratch_block::bytes_of<buffer>(threads_of(options)),
                      capped_product(threads_of(options), detail::scratch_block::bytes_of<record>(spans)));
  }
  static std::uint64_t new_number() noexcept {
    static std::atomic<std::uint64_t> given{0};
    return given.fetch_add(1, std::memory_order_relaxed) + 1;
  }

  [[nodiscard]] int threads() const noexcept {
    return (std::min)(claimed_.load(std::memory_order_acquire), static_cast<int>(buffers_.size()));
  }

  [[nodiscard]] buffer* mine_or_null() noexcept {
    last_used& it = last();
    if (it.recorder == number_) [[likely]]
      return it.mine;
    it = {number_, find()};
    return it.mine;
  }
  // The buffer of this thread, from now on if it had none.
  [[nodiscard]] buffer* find() noexcept {
    const std::uint64_t me = detail::thread_number();
    for (buffer& b : buffers_) {
      if (b.owner.load(std::memory_order_relaxed) == me) return &b;
    }
    int at = claimed_.load(std::memory_order_relaxed);
    do {
      if (at == static_cast<int>(buffers_.size())) return nullptr;
    } while (!claimed_.compare_exchange_weak(at, at + 1, std::memory_order_acq_rel));
    buffer& mine = buffers_[static_cast<std::size_t>(at)];
    mine.owner.store(me, std::memory_order_relaxed);
    return &mine;
  }

  void drop() noexcept { homeless_.fetch_add(1, std::memory_order_relaxed); }
  void open(const traced_op& op) noexcept {
    buffer* const mine = mine_or_null();
    if (mine == nullptr) return drop();
    mine->open(op, clock_.now());
  }
  void close() noexcept {
    const std::int64_t now = clock_.now();
    if (buffer* const mine = mine_or_null()) mine->close(now);
  }
  [[nodiscard]] double nanoseconds_per_tick() const noexcept {
    if (!clock_.is_counter()) return 1;
    std::int64_t steady = detail::tick_clock::steady();
    while (steady - steady_begun_ < 1'000'000) steady = detail::tick_clock::steady();
    return static_cast<double>(steady - steady_begun_) / static_cast<double>(clock_.now() - begun_);
  }

  const detail::tick_clock clock_;
  const std::int64_t steady_begun_ = detail::tick_clock::steady();
  const std::int64_t begun_ = clock_.now();
  const std::uint64_t number_ = new_number();
  const index_t spans_;
  detail::scratch_block block_;
  std::span<buffer> buffers_;
  std::atomic<int> claimed_{0};
  std::atomic<std::uint64_t> homeless_{0};
  mutable std::mutex added_mutex_;
  std::vector<trace_span> added_;
};

/// The cost of every op of a plan: its median span in nanoseconds, and the plan's own cost for an op that
/// was not recorded.
///
/// @pre     the recorder saw no other plan whose ops have the same numbers and names
/// @cost    as trace_recorder::costs
/// @threads as trace_recorder::costs
/// @error   throws std::bad_alloc
[[nodiscard]] inline std::vector<double> measured_costs(const task_plan& plan, const trace_recorder& trace) {
  std::vector<double> made;
  for (index_t op = 0; op < plan.size(); ++op) made.push_back(plan.cost(op));
  for (const trace_cost& c : trace.costs()) {
    if (c.op < 0 || c.op >= plan.size() || std::string_view(plan.name(c.op)) != c.name) continue;
    made[static_cast<std::size_t>(c.op)] = c.median_ns;
  }
  return made;
}

}}  // namespace deeprec::DEEPREC_ABI
