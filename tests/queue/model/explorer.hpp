// Runs a few threads in every order that matters, under C++'s weak memory, and says what went wrong.
//
//   thread 0 ──op──┐                      each atomic operation of each thread is one step; a step of a load
//   thread 1 ──op──┼──> one step at a     chooses between all values that the load may still read
//   thread 2 ──op──┘    time, all orders
//
// Threads are fibers, and an execution is repeated from its beginning for each order. Orders that differ only
// by steps that don't touch the same location are tried once (dynamic partial order reduction with sleep
// sets). The memory: each location keeps all stores in the order in which they were made; a thread may read
// any that is not older than what it knows of, and learns by acquire what a release store knew. A fence of
// seq_cst exchanges what is known with all others. With membarrier, light fences do nothing, and a heavy one
// exchanges what the caller knows with what every other thread knows. A store that is late comes behind one
// that another thread made before it, as far as its own thread does not know that one (limits::late_stores).
// Not modelled: a load that reads a store which comes after it in program order of another thread's future
// (load buffering).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/support/atomics.hpp>

namespace deeprec_test::model {

constexpr int max_threads = 4;
constexpr int main_thread = max_threads;  // makes the scenario and looks at its end
constexpr int max_locations = 40;
constexpr std::size_t stack_bytes = 64 * 1024;

// What is broken on purpose: one access made weaker (relaxed, or an exchange that does not acquire), or left
// out.
struct mutant {
  const char* name = "none";
  enum kind_type { none, relax, no_acquire, omit } kind = none;
  deeprec::detail::access site = deeprec::detail::access::statistic;
};

struct outcome {
  std::uint64_t executions = 0;  // complete ones, all different
  std::uint64_t pruned = 0;      // begun, and found to be the same as another
  std::uint64_t steps = 0;
  bool complete = true;  // false: the limit was reached
  bool failed = false;
  std::string what;
};

struct limits {
  std::uint64_t executions = 2'000'000;
  int stale_reads = 2;  // of each thread in one execution: loads that don't read the newest store
  bool membarrier = false;
  int late_stores = 0;  // of each thread in one execution: stores that don't become the newest
};

enum class op_kind : unsigned char {
  none,
  load,
  store,
  rmw,
  fence,
  barrier,
  park,
  timeout,
  wake,
  resume,
  done
};
struct op {
  op_kind kind = op_kind::none;
  int location = -1;
  [[nodiscard]] bool writes() const {
    return kind != op_kind::load && kind != op_kind::none && kind != op_kind::resume;
  }
};

using clock_vector = std::array<std::uint32_t, max_threads + 1>;
struct knowledge {
  std::array<std::uint16_t, max_locations> oldest{};  // of each location: the first store that may be read
  clock_vector clock{};                               // what happened before, for data races
  void join(const knowledge& other, bool with_clock = true) {
    for (std::size_t i = 0; i < oldest.size(); ++i) {
      if (other.oldest[i] > oldest[i]) oldest[i] = other.oldest[i];
    }
    if (!with_clock) return;
    for (std::size_t i = 0; i < clock.size(); ++i) {
      if (other.clock[i] > clock[i]) clock[i] = other.clock[i];
    }
  }
};

class explorer {
 public:
  // What a scenario is: made anew for each execution.
  struct scenario {
    virtual ~scenario() = default;
    virtual int threads() const = 0;
    virtual void run(int thread) = 0;
    virtual void finish() {}  // looks at the end, in main
  };

  static explorer& current() { return *instance(); }

  outcome explore(const std::function<std::unique_ptr<scenario>()>& make, const mutant& broken = {},
                  const limits& bounds = {});

  // --- for the atomics and payloads of scenarios ---------------------------------------------------

  int new_location(std::uint64_t first);
  std::uint64_t load(int location, std::memory_order order, deeprec::detail::access site);
  void store(int location, std::uint64_t value, std::memory_order order, deeprec::detail::access site);
  // change(old, new) answers whether the exchange happens; an exchange that fails reads like a load.
  using change = std::function<bool(std::uint64_t, std::uint64_t&)>;
  bool rmw(int location, std::uint64_t& seen, const change& to, std::memory_order success,
           std::memory_order failure, deeprec::detail::access site, deeprec::detail::access failure_site);
  void fence(deeprec::detail::access site);
  void light_fence(deeprec::detail::access site);
  void heavy_fence(deeprec::detail::access site);
  bool park(int location, std::uint32_t low, bool may_time_out);
  void wake(int location, int count);

  // Plain memory, for data races.
  void plain_read(const void* address);
  void plain_write(const void* address);
  void forget(const void* address) { shadow_.erase(address); }

  // The end of this execution and of the search: something is wrong.
  void fail(const std::string& what);

  [[nodiscard]] int thread() const { return running_; }
  // For orders between operations: a ends before b begins if b knows a's end.
  [[nodiscard]] clock_vector clock() const { return threads_[index(running_)].known.clock; }
  std::uint32_t tick() { return ++threads_[index(running_)].known.clock[index(running_)]; }

 private:
  static explorer*& instance() {
    static explorer* one = nullptr;
    return one;
  }
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }

  struct message {
    std::uint64_t value;
    knowledge known;
    bool exchanged = false;  // by an exchange, which read the store before it
  };
  struct thread_state {
    knowledge known;     // acquired, and own
    knowledge released;  // what a relaxed store hands on: known at the last release fence
    knowledge pending;   // what an acquire fence would add
    op next;
    bool woken = false;
    int stale = 0;
    int late = 0;
    clock_vector order{};  // for the reduction: the steps that come before this thread's last one
    void* stack_pointer = nullptr;
    std::array<void*, 2> exceptions{};  // the C++ run time's: what is being handled
    std::unique_ptr<std::byte[]> stack;
  };
  struct node {
    int thread = -1;
    int choice = 0;
    int choices = 1;
    unsigned enabled = 0;
    unsigned backtrack = 0;
    unsigned done = 0;
    unsigned sleep = 0;
    std::array<op, max_threads> next{};
  };
  struct cell {  // plain memory
    int writer = -1;
    std::uint32_t written = 0;
    clock_vector reads{};
  };
  struct last_steps {                                          // of one location, for the reduction
    std::array<std::uint32_t, max_threads> reads{}, writes{};  // step + 1
    clock_vector after_reads{}, after_writes{};
  };

  bool run_once(const std::function<std::unique_ptr<scenario>()>& make);
  bool next_order();
  void step(int thread);
  void yield(op next);
  int choose(int count);
  bool enabled(int thread) const;
  unsigned enabled_mask() const;
  template <class Use>
  void each_touched(const op& what, Use use);
  void note_races(int thread, const op& what, std::uint32_t depth);
  void note_order(int thread, const op& what, std::uint32_t depth);
  std::size_t place_of_store(int location);
  std::uint64_t read_message(int location, std::size_t which, std::memory_order order);
  static bool dependent(const op& a, const op& b);
  static void enter();

  mutant broken_;
  limits bounds_;
  outcome result_;
  std::vector<node> path_;
  std::size_t depth_ = 0;
  bool recording_ = false;

  std::unique_ptr<scenario> scenario_;
  std::array<thread_state, max_threads + 1> threads_;
  std::vector<std::vector<message>> memory_;
  std::vector<last_steps> touched_;
  last_steps fences_;
  knowledge fenced_;
  std::map<const void*, cell> shadow_;
  int running_ = main_thread;
  int count_ = 0;
  void* main_stack_ = nullptr;
};

// A library's atomics, run by the explorer.
struct model_order {
  deeprec::detail::access site;
  std::memory_order order;
};

// Where the library uses an access, as far as it was executed.
struct site_use {
  const char* file = nullptr;
  int line = 0;
  std::memory_order order = std::memory_order_relaxed;
  bool elsewhere = false;  // in another line too
};
constexpr std::size_t site_count = static_cast<std::size_t>(deeprec::detail::access::statistic) + 1;
inline std::array<site_use, site_count> sites;
inline void note_site(deeprec::detail::access site, std::memory_order order, const char* file, int line) {
  site_use& u = sites[static_cast<std::size_t>(site)];
  if (u.file == nullptr) u = {file, line, order, false};
  if (u.line != line || u.order != order) u.elsewhere = true;
}

template <class T>
class model_atomic {
 public:
  model_atomic() : model_atomic(T{}) {}
  model_atomic(T first) : location_(explorer::current().new_location(static_cast<std::uint64_t>(first))) {}
  model_atomic(const model_atomic&) = delete;

  T load(model_order o) const { return static_cast<T>(explorer::current().load(location_, o.order, o.site)); }
  void store(T value, model_order o) {
    explorer::current().store(location_, static_cast<std::uint64_t>(value), o.order, o.site);
  }
  T fetch_add(T by, model_order o) {
    return exchange([by](T old) { return static_cast<T>(old + by); }, o);
  }
  T fetch_sub(T by, model_order o) {
    return exchange([by](T old) { return static_cast<T>(old - by); }, o);
  }
  T fetch_or(T by, model_order o) {
    return exchange([by](T old) { return static_cast<T>(old | by); }, o);
  }
  T fetch_and(T by, model_order o) {
    return exchange([by](T old) { return static_cast<T>(old & by); }, o);
  }
  bool compare_exchange_weak(T& expected, T wanted, model_order o, std::memory_order failure) {
    return compare_exchange_weak(expected, wanted, o, {o.site, failure});
  }
  bool compare_exchange_weak(T& expected, T wanted, model_order o) {
    return compare_exchange_weak(expected, wanted, o, o);
  }
  bool compare_exchange_weak(T& expected, T wanted, model_order o, model_order failure) {
    std::uint64_t seen = 0;
    const T old = expected;
    const bool done = explorer::current().rmw(
        location_, seen,
        [&](std::uint64_t value, std::uint64_t& now) {
          now = static_cast<std::uint64_t>(wanted);
          return static_cast<T>(value) == old;
        },
        o.order, failure.order, o.site, failure.site);
    expected = static_cast<T>(seen);
    return done;
  }
  [[nodiscard]] int location() const { return location_; }

 private:
  template <class Change>
  T exchange(Change change, model_order o) {
    std::uint64_t seen = 0;
    explorer::current().rmw(
        location_, seen,
        [&](std::uint64_t value, std::uint64_t& now) {
          now = static_cast<std::uint64_t>(change(static_cast<T>(value)));
          return true;
        },
        o.order, o.order, o.site, o.site);
    return static_cast<T>(seen);
  }
  int location_;
};

struct model_atomics {
  template <class T>
  using atomic = model_atomic<T>;
  using time_point = std::chrono::steady_clock::time_point;

  static model_order at(deeprec::detail::access site, std::memory_order order,
                        const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    note_site(site, order, file, line);
    return {site, order};
  }
  static void prepare() {}
  static void light_fence(deeprec::detail::access site, const char* file = __builtin_FILE(),
                          int line = __builtin_LINE()) {
    note_site(site, std::memory_order_seq_cst, file, line);
    explorer::current().light_fence(site);
  }
  static void heavy_fence(deeprec::detail::access site, const char* file = __builtin_FILE(),
                          int line = __builtin_LINE()) {
    note_site(site, std::memory_order_seq_cst, file, line);
    explorer::current().heavy_fence(site);
  }
  static void relax() {}
  static void yield() {}
  static void fetch(const void*) {}
  static void fetch_for_write(const void*) {}
  static time_point now() { return {}; }
  static bool park(model_atomic<std::uint64_t>& word, std::uint32_t low, time_point deadline) {
    return explorer::current().park(word.location(), low, deadline != time_point::max());
  }
  static void wake(model_atomic<std::uint64_t>& word, int count) {
    explorer::current().wake(word.location(), count);
  }
};

// An item whose every access is checked for data races, and which must not be read before it is made.
class watched {
 public:
  watched() : watched(-1) {}
  explicit watched(int v) : value_(v) { explorer::current().plain_write(this); }
  watched(watched&& other) noexcept : value_(other.take()) { explorer::current().plain_write(this); }
  watched& operator=(watched&& other) noexcept {
    value_ = other.take();
    explorer::current().plain_write(this);
    return *this;
  }
  ~watched() { explorer::current().plain_write(this); }
  [[nodiscard]] int value() const {
    explorer::current().plain_read(this);
    return value_;
  }

 private:
  int take() noexcept {
    explorer::current().plain_read(this);
    explorer::current().plain_write(this);  // a move writes to where it came from
    return value_;
  }
  int value_;
};

// An item whose moves may throw: `moves` times it can be moved from, then a move throws once, and it is whole
// again.
class brittle {
 public:
  struct broken {
    int value;
  };
  brittle() = default;
  explicit brittle(int v, int moves = -1) : inner_(v), moves_(moves) {}
  brittle(brittle&& other) : inner_(std::move(other.once_more())), moves_(other.moves_) {}
  brittle& operator=(brittle&& other) {
    inner_ = std::move(other.once_more());
    moves_ = other.moves_;
    return *this;
  }
  [[nodiscard]] int value() const { return inner_.value(); }

 private:
  watched& once_more() {
    const int left = moves_;
    moves_ = left <= 0 ? -1 : left - 1;
    if (left == 0) throw broken{inner_.value()};
    return inner_;
  }
  watched inner_;
  int moves_ = -1;
};

}  // namespace deeprec_test::model
