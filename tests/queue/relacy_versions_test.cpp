// Versioned models under Relacy: as they are, weakened at one access at a time, and with mistakes, which it
// has to notice. Built only where Relacy's header is found. Here every fence is a full one; what membarrier
// needs on top is explored by version_orders_test.cpp.
#include <deeprec/serving/versioned.hpp>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <memory_resource>
#include <optional>
#include <utility>

#include "queue/relacy_runs.hpp"  // last: it brings macros

namespace {

using namespace deeprec_test;
using deeprec::detail::access;

// The publisher frees without a look at the pins: what it reads of them is that there are none.
struct sees_no_pins : relacy_atomics {
  struct site_order {
    access site;
    rl::memory_order order;
    operator rl::memory_order() const { return order; }
  };
  static site_order at(access site, std::memory_order order) {
    return {site, relacy_atomics::at(site, order)};
  }
  template <class T>
  struct atomic : relacy_atomic<T> {
    using relacy_atomic<T>::relacy_atomic;
    T load(site_order o) const {
      const T value = relacy_atomic<T>::load(o);
      return o.site == access::pin_seen || o.site == access::crowd_seen ? T{} : value;
    }
  };
};

// Relacy's memory, which watches its use too; its delete has no form with a size. Not inlined: the compiler
// would take it for a mistake.
[[gnu::noinline]] void* take(std::size_t size) { return ::operator new(size); }
[[gnu::noinline]] void give_back(void* p) { ::operator delete(p); }

// Its memory is looked at by an rl::var: what reads a model beside its end is a race.
struct model {
  explicit model(int n) { number(RL_INFO).store(n); }
  model(const model&) = delete;
  model& operator=(const model&) = delete;
  ~model() { number(RL_INFO).store(-1); }
  static void* operator new(std::size_t size) { return take(size); }
  static void operator delete(void* p) { give_back(p); }
  mutable rl::var<int> number;
};
class watched_memory final : public std::pmr::memory_resource {
  void* do_allocate(std::size_t size, std::size_t) override { return take(size); }
  void do_deallocate(void* p, std::size_t, std::size_t) override { give_back(p); }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }
};

template <class Atomics>
struct shared {
  using models_type = deeprec::versioned<model, 1, Atomics>;
  watched_memory memory;
  models_type models{1, &memory};
  deeprec::index_t published = 0;

  void publish() {
    const auto number = models.publish(std::make_unique<model>(static_cast<int>(++published)));
    RL_ASSERT(number.ok() && number.value() == published);
  }
  static void look(const typename models_type::reading& now) {
    if (now) RL_ASSERT(now->number(RL_INFO).load() == static_cast<int>(now.version()));
  }
};

// The last thread publishes.
template <int Readers, int Publications, class Atomics = relacy_atomics>
struct replaced : rl::test_suite<replaced<Readers, Publications, Atomics>, Readers + 1> {
  std::unique_ptr<shared<Atomics>> all = std::make_unique<shared<Atomics>>();
  void before() { all->publish(); }
  void thread(unsigned index) {
    if (index < Readers) return all->look(all->models.read());
    for (int k = 0; k < Publications; ++k) all->publish();
  }
};

// A reading begins on one thread and ends on another.
template <class Atomics = relacy_atomics>
struct reading_moves : rl::test_suite<reading_moves<Atomics>, 3> {
  std::unique_ptr<shared<Atomics>> all = std::make_unique<shared<Atomics>>();
  typename shared<Atomics>::models_type::reading moved;
  rl::atomic<int> handed;
  void before() {
    handed(RL_INFO).store(0, rl::mo_relaxed);
    all->publish();
  }
  void thread(unsigned index) {
    if (index == 0) {
      moved = all->models.read();
      handed(RL_INFO).store(1, rl::mo_release);
    } else if (index == 1) {
      if (handed(RL_INFO).load(rl::mo_acquire) == 0) return;
      const auto mine = std::move(moved);
      all->look(mine);
    } else {
      all->publish();
      all->publish();
    }
  }
  void after() { moved = {}; }
};

}  // namespace

int main(int count, char** arguments) {
  if (count > 1) executions = std::strtoull(arguments[1], nullptr, 10);
  holds<replaced<1, 2>>("read | publish x2", rl::sched_random);
  holds<replaced<2, 2>>("read | read | publish x2", rl::sched_random);
  holds<reading_moves<>>("read | another thread ends it | publish x2", rl::sched_random);

  // All orders with at most so many switches away from a thread that could have gone on.
  holds<replaced<1, 2>>("read | publish x2", rl::sched_bound, 3);
  holds<replaced<2, 1>>("read | read | publish", rl::sched_bound, 2);

  breaks<replaced<1, 2>>("versioned: model_publish", access::model_publish);
  breaks<replaced<1, 2>>("versioned: model_seen", access::model_seen);
  breaks<replaced<1, 2>>("reclaimer: pin_leave", access::pin_leave);
  breaks<replaced<1, 2>>("reclaimer: pin_seen", access::pin_seen);
  breaks<replaced<1, 2>>("reclaimer: no pin_fence", access::pin_fence);
  breaks<replaced<1, 2>>("reclaimer: no unlink_fence", access::unlink_fence);
  breaks<replaced<1, 2, sees_no_pins>>("freed without a look at the pins", {});
  breaks<reading_moves<sees_no_pins>>("the same, another thread reads", {});

  std::printf(failures == 0 ? "all as expected\n" : "%d not as expected\n", failures);
  return failures == 0 ? 0 : 1;
}
