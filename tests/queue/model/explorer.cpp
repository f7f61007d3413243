#include "queue/model/explorer.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <cxxabi.h>

#if !defined(__x86_64__)
#  include <ucontext.h>
#endif

namespace deeprec_test::model {

// --- fibers ----------------------------------------------------------------------------------------

#if defined(__x86_64__)
extern "C" void deeprec_test_switch_stack(void** save, void* to);
asm(R"(
.text
.globl deeprec_test_switch_stack
.type deeprec_test_switch_stack,@function
deeprec_test_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size deeprec_test_switch_stack,.-deeprec_test_switch_stack
)");

namespace {
void* new_stack(std::byte* memory, void (*entry)()) {
  auto top = reinterpret_cast<std::uintptr_t>(memory + stack_bytes) & ~std::uintptr_t{15};
  auto* slots = reinterpret_cast<std::uintptr_t*>(top);
  *--slots = 0;  // where entry would return to; keeps the alignment that a call leaves
  *--slots = reinterpret_cast<std::uintptr_t>(entry);
  for (int i = 0; i < 6; ++i) *--slots = 0;
  return slots;
}
void switch_stack(void** save, void* to) { deeprec_test_switch_stack(save, to); }
}  // namespace
#else
namespace {
struct context_on_heap {
  ucontext_t context;
};
void* new_stack(std::byte* memory, void (*entry)()) {
  auto* c = new context_on_heap;  // some are never freed; a test may
  getcontext(&c->context);
  c->context.uc_stack.ss_sp = memory;
  c->context.uc_stack.ss_size = stack_bytes;
  c->context.uc_link = nullptr;
  makecontext(&c->context, entry, 0);
  return c;
}
void switch_stack(void** save, void* to) {
  auto* from = new context_on_heap;
  *save = from;
  swapcontext(&from->context, &static_cast<context_on_heap*>(to)->context);
  delete from;
}
}  // namespace
#endif

void explorer::enter() {
  explorer& self = current();
  const int me = self.running_;
  self.scenario_->run(me);
  self.threads_[index(me)].next = {op_kind::done, -1};
  void* nowhere = nullptr;
  switch_stack(&nowhere, self.main_stack_);
  std::abort();
}

// --- the search ------------------------------------------------------------------------------------

bool explorer::dependent(const op& a, const op& b) {
  if (a.kind == op_kind::barrier || b.kind == op_kind::barrier) return true;
  if (a.kind == op_kind::fence || b.kind == op_kind::fence) return a.kind == b.kind;
  return a.location >= 0 && a.location == b.location && (a.writes() || b.writes());
}

bool explorer::enabled(int thread) const {
  const thread_state& t = threads_[index(thread)];
  return t.next.kind != op_kind::done && t.next.kind != op_kind::none;
}

unsigned explorer::enabled_mask() const {
  unsigned mask = 0;
  for (int t = 0; t < count_; ++t) mask |= enabled(t) ? 1u << t : 0u;
  return mask;
}

// What a step touches: one location, all fences, or, for a barrier, everything.
template <class Use>
void explorer::each_touched(const op& what, Use use) {
  if (what.kind == op_kind::barrier) {
    for (last_steps& t : touched_) use(t);
    use(fences_);
  } else if (what.kind == op_kind::fence) {
    use(fences_);
  } else if (what.location >= 0) {
    use(touched_[index(what.location)]);
  }
}

// The last step of another thread that this one races with: the other order has to be tried from there.
void explorer::note_races(int thread, const op& what, std::uint32_t depth) {
  const clock_vector& before = threads_[index(thread)].order;
  std::uint32_t last = 0;
  each_touched(what, [&](const last_steps& touched) {
    for (int q = 0; q < count_; ++q) {
      if (q == thread) continue;
      const auto consider = [&](std::uint32_t step) {
        if (step > before[index(q)] && step > last) last = step;
      };
      consider(touched.writes[index(q)]);
      if (what.writes()) consider(touched.reads[index(q)]);
    }
  });
  if (last == 0 || last > depth) return;
  node& there = path_[last - 1];
  const unsigned mine = 1u << thread;
  there.backtrack |= (there.enabled & mine) != 0 ? mine : there.enabled;
}

void explorer::note_order(int thread, const op& what, std::uint32_t depth) {
  clock_vector& mine = threads_[index(thread)].order;
  const auto join = [](clock_vector& to, const clock_vector& from) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = std::max(to[i], from[i]);
  };
  each_touched(what, [&](const last_steps& touched) {
    join(mine, touched.after_writes);
    if (what.writes()) join(mine, touched.after_reads);
  });
  mine[index(thread)] = depth + 1;
  each_touched(what, [&](last_steps& touched) {
    if (what.writes()) {
      touched.writes[index(thread)] = depth + 1;
      join(touched.after_writes, mine);
    } else {
      touched.reads[index(thread)] = depth + 1;
      join(touched.after_reads, mine);
    }
  });
}

void explorer::step(int thread) {
  running_ = thread;
  // Fibers that handle exceptions at the same time: each has a stack of them of its own.
  void* const globals = abi::__cxa_get_globals();
  thread_state& state = threads_[index(thread)];
  std::array<void*, 2> outside;
  std::memcpy(outside.data(), globals, sizeof(outside));
  std::memcpy(globals, state.exceptions.data(), sizeof(outside));
  switch_stack(&main_stack_, state.stack_pointer);
  std::memcpy(state.exceptions.data(), globals, sizeof(outside));
  std::memcpy(globals, outside.data(), sizeof(outside));
  running_ = main_thread;
}

// In a fiber: says what it is about to do, and does it when it is its turn.
void explorer::yield(op next) {
  thread_state& me = threads_[index(running_)];
  me.next = next;
  switch_stack(&me.stack_pointer, main_stack_);
}

int explorer::choose(int count) {
  if (!recording_) return 0;
  node& here = path_[depth_];
  here.choices = count;
  return here.choice;
}

bool explorer::run_once(const std::function<std::unique_ptr<scenario>()>& make) {
  memory_.clear();
  touched_.clear();
  fences_ = {};
  fenced_ = {};
  shadow_.clear();
  running_ = main_thread;
  recording_ = false;
  for (thread_state& t : threads_) {
    t.known = t.released = t.pending = {};
    t.next = {};
    t.woken = false;
    t.stale = 0;
    t.late = 0;
    t.order = {};
    t.exceptions = {};
  }
  scenario_ = make();
  count_ = scenario_->threads();
  touched_.resize(memory_.size());
  tick();
  for (int t = 0; t < count_; ++t) {
    thread_state& state = threads_[index(t)];
    state.known = threads_[main_thread].known;
    state.known.clock[index(t)] = 1;
    if (!state.stack) state.stack = std::make_unique<std::byte[]>(stack_bytes);
    state.stack_pointer = new_stack(state.stack.get(), &explorer::enter);
    step(t);  // to its first operation
  }
  depth_ = 0;
  recording_ = true;
  std::uint64_t steps = 0;
  int before = -1;
  while (!result_.failed) {
    const unsigned can = enabled_mask();
    if (can == 0) {
      for (int t = 0; t < count_; ++t) {
        if (threads_[index(t)].next.kind != op_kind::done) {
          fail("thread " + std::to_string(t) + " sleeps for ever");
        }
      }
      break;
    }
    if (++steps > 5000) {
      fail("no end: the threads go in circles");
      break;
    }
    int chosen = -1;
    if (!recording_) {
      chosen = std::countr_zero(can);
    } else if (depth_ < path_.size()) {
      chosen = path_[depth_].thread;
    } else {
      node here;
      here.enabled = can;
      for (int t = 0; t < count_; ++t) here.next[index(t)] = threads_[index(t)].next;
      if (depth_ > 0) {
        const node& up = path_[depth_ - 1];
        const op& taken = up.next[index(up.thread)];
        for (int t = 0; t < count_; ++t) {
          const bool asleep = ((up.sleep | up.done) & (1u << t)) != 0 && t != up.thread;
          if (asleep && !dependent(up.next[index(t)], taken)) here.sleep |= 1u << t;
        }
      }
      const unsigned awake = can & ~here.sleep;
      if (awake == 0) {  // every order from here was tried: only let the threads end
        recording_ = false;
        continue;
      }
      const bool go_on = before >= 0 && (awake & (1u << before)) != 0;
      here.thread = go_on ? before : std::countr_zero(awake);
      here.backtrack = 1u << here.thread;
      path_.push_back(here);
      chosen = here.thread;
    }
    if (recording_) {
      const op what = threads_[index(chosen)].next;
      note_races(chosen, what, static_cast<std::uint32_t>(depth_));
      note_order(chosen, what, static_cast<std::uint32_t>(depth_));
    }
    before = chosen;
    step(chosen);
    if (recording_) ++depth_;
  }
  result_.steps += steps;
  if (result_.failed) {
    static_cast<void>(scenario_.release());  // fibers still stand in it
    return false;
  }
  const bool complete = recording_;
  recording_ = false;
  for (int t = 0; t < count_; ++t) {
    threads_[main_thread].known.join(threads_[index(t)].known);
  }
  scenario_->finish();
  scenario_.reset();
  ++(complete ? result_.executions : result_.pruned);
  return !result_.failed;
}

bool explorer::next_order() {
  while (!path_.empty()) {
    node& last = path_.back();
    if (last.choice + 1 < last.choices) {
      ++last.choice;
      return true;
    }
    last.done |= 1u << last.thread;
    const unsigned left = last.backtrack & ~last.done & ~last.sleep;
    if (left != 0) {
      last.thread = std::countr_zero(left);
      last.choice = 0;
      last.choices = 1;
      return true;
    }
    path_.pop_back();
  }
  return false;
}

outcome explorer::explore(const std::function<std::unique_ptr<scenario>()>& make, const mutant& broken,
                          const limits& bounds) {
  explorer* const outer = std::exchange(instance(), this);
  broken_ = broken;
  bounds_ = bounds;
  result_ = {};
  path_.clear();
  while (run_once(make)) {
    if (!next_order()) break;
    if (result_.executions + result_.pruned >= bounds_.executions) {
      result_.complete = false;
      break;
    }
  }
  instance() = outer;
  return result_;
}

void explorer::fail(const std::string& what) {
  if (result_.failed) return;
  result_.failed = true;
  result_.what = what;
}

// --- the memory ------------------------------------------------------------------------------------

namespace {
bool acquires(std::memory_order o) {
  return o == std::memory_order_acquire || o == std::memory_order_acq_rel || o == std::memory_order_seq_cst;
}
bool releases(std::memory_order o) {
  return o == std::memory_order_release || o == std::memory_order_acq_rel || o == std::memory_order_seq_cst;
}
}  // namespace

int explorer::new_location(std::uint64_t first) {
  if (memory_.size() >= max_locations) std::abort();
  memory_.push_back({message{first, {}}});
  return static_cast<int>(memory_.size()) - 1;
}

std::uint64_t explorer::read_message(int location, std::size_t which, std::memory_order order) {
  thread_state& me = threads_[index(running_)];
  const message& read = memory_[index(location)][which];
  me.known.oldest[index(location)] = static_cast<std::uint16_t>(which);
  if (which + 1 < memory_[index(location)].size()) ++me.stale;
  (acquires(order) ? me.known : me.pending).join(read.known);
  return read.value;
}

std::uint64_t explorer::load(int location, std::memory_order order, deeprec::detail::access site) {
  if (running_ == main_thread || site == deeprec::detail::access::statistic) {
    return memory_[index(location)].back().value;
  }
  if (broken_.kind == mutant::relax && broken_.site == site) order = std::memory_order_relaxed;
  yield({op_kind::load, location});
  const auto& stores = memory_[index(location)];
  thread_state& me = threads_[index(running_)];
  const std::size_t oldest = me.known.oldest[index(location)];
  const std::size_t newest = stores.size() - 1;
  const int choices = me.stale < bounds_.stale_reads ? static_cast<int>(newest - oldest) + 1 : 1;
  return read_message(location, newest - index(choose(choices)), order);
}

// Where the caller's store comes among those of its location: last, or, where it may be late, before stores
// that the caller does not know. Nothing comes between an exchange and what it read.
std::size_t explorer::place_of_store(int location) {
  const auto& stores = memory_[index(location)];
  thread_state& me = threads_[index(running_)];
  const std::size_t newest_known = me.known.oldest[index(location)];
  std::vector<std::size_t> places{stores.size()};
  for (std::size_t p = stores.size() - 1; me.late < bounds_.late_stores && p > newest_known; --p) {
    if (!stores[p].exchanged) places.push_back(p);
  }
  const std::size_t place = places[index(choose(static_cast<int>(places.size())))];
  if (place == stores.size()) return place;
  ++me.late;
  const auto move_up = [&](knowledge& k) {
    if (k.oldest[index(location)] >= place) ++k.oldest[index(location)];
  };
  for (thread_state& t : threads_) move_up(t.known), move_up(t.released), move_up(t.pending);
  move_up(fenced_);
  for (auto& of_one : memory_) {
    for (message& m : of_one) move_up(m.known);
  }
  return place;
}

void explorer::store(int location, std::uint64_t value, std::memory_order order,
                     deeprec::detail::access site) {
  if (running_ == main_thread || site == deeprec::detail::access::statistic) {
    memory_[index(location)].back().value = value;
    return;
  }
  if (broken_.site == site && broken_.kind == mutant::relax) order = std::memory_order_relaxed;
  yield({op_kind::store, location});
  if (broken_.site == site && broken_.kind == mutant::omit) return;
  thread_state& me = threads_[index(running_)];
  const std::size_t place = place_of_store(location);
  me.known.oldest[index(location)] = static_cast<std::uint16_t>(place);
  message stored{value, releases(order) ? me.known : me.released};
  stored.known.oldest[index(location)] = me.known.oldest[index(location)];
  auto& stores = memory_[index(location)];
  stores.insert(stores.begin() + static_cast<std::ptrdiff_t>(place), stored);
  tick();  // what comes now is not known to who reads this store
}

bool explorer::rmw(int location, std::uint64_t& seen, const change& to, std::memory_order success,
                   std::memory_order failure, deeprec::detail::access site,
                   deeprec::detail::access failure_site) {
  auto& stores = memory_[index(location)];
  std::uint64_t now = 0;
  if (running_ == main_thread || site == deeprec::detail::access::statistic) {
    seen = stores.back().value;
    if (!to(seen, now)) return false;
    stores.back().value = now;
    return true;
  }
  if (broken_.site == site && broken_.kind == mutant::relax) success = std::memory_order_relaxed;
  if (broken_.site == site && broken_.kind == mutant::no_acquire) {
    success = releases(success) ? std::memory_order_release : std::memory_order_relaxed;
  }
  if (broken_.site == failure_site && broken_.kind == mutant::relax) failure = std::memory_order_relaxed;
  yield({op_kind::rmw, location});
  thread_state& me = threads_[index(running_)];
  if (broken_.site == site && broken_.kind == mutant::omit) {
    seen = stores.back().value;
    return true;
  }
  // An exchange that succeeds reads the newest store. One that fails might read an older one, and try again:
  // nothing that a load before it would not have shown.
  const std::size_t newest = stores.size() - 1;
  const std::size_t which = newest;
  const bool done = to(stores[which].value, now);
  seen = read_message(location, which, done ? success : failure);
  if (!done) return false;
  me.known.oldest[index(location)] = static_cast<std::uint16_t>(stores.size());
  message stored{now, releases(success) ? me.known : me.released, true};
  stored.known.join(stores[newest].known);  // an exchange goes on with the release sequence
  stored.known.oldest[index(location)] = me.known.oldest[index(location)];
  stores.push_back(stored);
  tick();
  return true;
}

void explorer::fence(deeprec::detail::access site) {
  if (running_ == main_thread) return;
  if (broken_.site == site && broken_.kind == mutant::omit) return;
  yield({op_kind::fence, -1});
  thread_state& me = threads_[index(running_)];
  me.known.join(me.pending);
  me.known.join(fenced_, false);
  fenced_.join(me.known, false);
  me.released = me.known;
  tick();
}

void explorer::light_fence(deeprec::detail::access site) {
  if (!bounds_.membarrier) fence(site);
}

void explorer::heavy_fence(deeprec::detail::access site) {
  if (!bounds_.membarrier) return fence(site);
  if (running_ == main_thread) return;
  if (broken_.site == site && broken_.kind == mutant::omit) return;
  yield({op_kind::barrier, -1});
  thread_state& me = threads_[index(running_)];
  me.known.join(me.pending);
  const knowledge mine = me.known;
  // Every other thread is interrupted somewhere: it exchanges what it knows with the caller, not with the
  // rest.
  for (int t = 0; t < count_; ++t) {
    if (t == running_) continue;
    me.known.join(threads_[index(t)].known, false);
    threads_[index(t)].known.join(mine, false);
  }
  me.released = me.known;
  tick();
}

// The kernel compares with the newest value, under a lock that wake() takes too.
bool explorer::park(int location, std::uint32_t low, bool may_time_out) {
  thread_state& me = threads_[index(running_)];
  yield({op_kind::park, location});
  if (static_cast<std::uint32_t>(memory_[index(location)].back().value) != low) return true;
  me.woken = false;
  me.next = {may_time_out ? op_kind::timeout : op_kind::none, location};
  switch_stack(&me.stack_pointer, main_stack_);
  if (!may_time_out) return true;
  return me.woken && choose(2) == 0;  // a thread that was woken may find that its time is over as well
}

void explorer::wake(int location, int count) {
  if (running_ == main_thread) return;
  yield({op_kind::wake, location});
  std::array<int, max_threads> asleep{};
  int there = 0;
  for (int t = 0; t < count_; ++t) {
    const thread_state& other = threads_[index(t)];
    const bool sleeps = other.next.kind == op_kind::timeout || other.next.kind == op_kind::none;
    if (t != running_ && sleeps && other.next.location == location) asleep[index(there++)] = t;
  }
  if (there == 0) return;
  // One: whichever the kernel likes.
  const int first = count < 0 ? 0 : choose(there);
  const int last = count < 0 ? there : first + 1;
  for (int i = first; i < last; ++i) {
    thread_state& other = threads_[index(asleep[index(i)])];
    other.woken = true;
    other.next = {op_kind::resume, -1};
    for (std::size_t k = 0; k < other.order.size(); ++k) {
      other.order[k] = std::max(other.order[k], threads_[index(running_)].order[k]);
    }
  }
}

void explorer::plain_read(const void* address) {
  cell& c = shadow_[address];
  thread_state& me = threads_[index(running_)];
  if (c.writer >= 0 && c.writer != running_ && c.written > me.known.clock[index(c.writer)]) {
    fail("data race: thread " + std::to_string(running_) + " reads an item that thread " +
         std::to_string(c.writer) + " writes");
  }
  c.reads[index(running_)] = me.known.clock[index(running_)];
}

void explorer::plain_write(const void* address) {
  cell& c = shadow_[address];
  thread_state& me = threads_[index(running_)];
  if (c.writer >= 0 && c.writer != running_ && c.written > me.known.clock[index(c.writer)]) {
    fail("data race: threads " + std::to_string(running_) + " and " + std::to_string(c.writer) +
         " write an item");
  }
  for (int t = 0; t <= max_threads; ++t) {
    if (t != running_ && c.reads[index(t)] > me.known.clock[index(t)]) {
      fail("data race: thread " + std::to_string(running_) + " writes an item that thread " +
           std::to_string(t) + " reads");
    }
  }
  c.writer = running_;
  c.written = me.known.clock[index(running_)];
}

}  // namespace deeprec_test::model
