// Every order in which readers read versions of a model beside the publisher that replaces, frees and returns
// to them, under weak memory. The accesses of versioned, weakened alone, are caught, and so is each mistake.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <utility>
#include <vector>

#include <deeprec/serving/versioned.hpp>

#include "queue/model/cases.hpp"

namespace {

using namespace deeprec_test::model;
using deeprec::index_t;
using deeprec::detail::access;

constexpr model_order release{access::position, std::memory_order_release};
constexpr model_order acquire{access::position, std::memory_order_acquire};

// --- mistakes, as atomics that do something else --------------------------------------------------------

// The reader loads the version, and then pins.
struct loads_before_pin : model_atomics {
  inline static const model_atomic<std::uintptr_t>* link = nullptr;
  template <class T>
  struct atomic : model_atomic<T> {
    using model_atomic<T>::model_atomic;
    T load(model_order o) const {
      static std::array<std::uintptr_t, max_threads + 1> early;
      std::uintptr_t& mine = early[static_cast<std::size_t>(explorer::current().thread())];
      if constexpr (sizeof(T) == sizeof(mine)) {
        if (o.site == access::epoch_seen) mine = link->load({access::model_seen, std::memory_order_acquire});
        if (o.site == access::model_seen) return static_cast<T>(mine);
      }
      return model_atomic<T>::load(o);
    }
    void store(T value, model_order o) {
      if constexpr (sizeof(T) == sizeof(std::uintptr_t)) {
        if (o.site == access::model_publish) link = this;
      }
      model_atomic<T>::store(value, o);
    }
  };
};

// The publisher frees without a look at the pins.
struct sees_no_pins : model_atomics {
  template <class T>
  struct atomic : model_atomic<T> {
    using model_atomic<T>::model_atomic;
    T load(model_order o) const {
      return o.site == access::pin_seen || o.site == access::crowd_seen ? T{} : model_atomic<T>::load(o);
    }
  };
};

// The epoch ends, and then the version is replaced.
struct ends_before_store : model_atomics {
  inline static model_atomic<std::uint64_t>* late = nullptr;  // there is one publisher
  inline static std::uint64_t its_value = 0;
  template <class T>
  struct atomic : model_atomic<T> {
    using model_atomic<T>::model_atomic;
    void store(T value, model_order o) {
      if constexpr (sizeof(T) == sizeof(std::uint64_t)) {
        if (o.site == access::model_publish) {
          late = this;
          its_value = value;
          return;
        }
      }
      model_atomic<T>::store(value, o);
    }
    T fetch_add(T by, model_order o) {
      const T before = model_atomic<T>::fetch_add(by, o);
      if (o.site == access::epoch_next && late != nullptr)
        std::exchange(late, nullptr)->store(its_value, release);
      return before;
    }
  };
};

// The reader's pin ends when it has read which version is current.
struct leaves_early : model_atomics {
  inline static std::array<model_atomic<std::uint64_t>*, max_threads + 1> place{};
  template <class T>
  struct atomic : model_atomic<T> {
    using model_atomic<T>::model_atomic;
    bool compare_exchange_weak(T& expected, T wanted, model_order o, std::memory_order failure) {
      const bool done = model_atomic<T>::compare_exchange_weak(expected, wanted, o, failure);
      if constexpr (sizeof(T) == sizeof(std::uint64_t)) {
        if (done && o.site == access::pin_enter) mine() = this;
      }
      return done;
    }
    T load(model_order o) const {
      const T value = model_atomic<T>::load(o);
      if (o.site == access::model_seen && mine() != nullptr)
        std::exchange(mine(), nullptr)->store(0, {access::pin_leave, std::memory_order_release});
      return value;
    }
    static model_atomic<std::uint64_t>*& mine() {
      return place[static_cast<std::size_t>(explorer::current().thread())];
    }
  };
};

// --- scenarios ------------------------------------------------------------------------------------------

// Memory that is not used again while an execution lasts, so that what was freed can be looked at.
struct arena {
  arena() { current = this; }
  alignas(std::max_align_t) std::array<std::byte, 4096> bytes;
  std::pmr::monotonic_buffer_resource memory{bytes.data(), bytes.size(), std::pmr::null_memory_resource()};
  inline static arena* current = nullptr;
};

constexpr int publisher = 0;

// Two cells that are watched for data races, also with the destructor.
struct model {
  explicit model(int n) : first(n), second(n) {}
  model(const model&) = delete;
  model& operator=(const model&) = delete;
  ~model() {
    if (explorer::current().thread() == publisher) ++happened.reuses;
  }
  static void* operator new(std::size_t size) { return arena::current->memory.allocate(size); }
  static void operator delete(void*, std::size_t) {}
  watched first, second;
};

// Thread 0 publishes, the others read.
template <int Readers, int Kept, int Places = 1, class Atomics = model_atomics>
struct beside_publisher : explorer::scenario {
  using models_type = deeprec::versioned<model, Places, Atomics>;
  using reading = typename models_type::reading;

  int threads() const override { return Readers + 1; }
  void publish() {
    const int number = static_cast<int>(++published);
    if (models.publish(std::make_unique<model>(number)).value() != published)
      explorer::current().fail("a number that was not expected");
  }
  // What a reader sees; the number of the version.
  index_t look(const reading& now) {
    if (!now) {
      ++happened.misses;
      return 0;
    }
    ++happened.hits;
    if (now->first.value() != now.version() || now->second.value() != now.version())
      explorer::current().fail("a version that is not whole");
    return now.version();
  }
  void read() { static_cast<void>(look(models.read())); }
  void finish() override {
    models.collect();
    if (models.statistics().waiting != 0)
      explorer::current().fail("a version that no reading has is not freed");
  }

  index_t published = 0;
  arena own;
  models_type models{Kept, &own.memory};
};

// From nothing.
template <int Readers, int Publications, class Atomics = model_atomics>
struct from_nothing : beside_publisher<Readers, 1, 1, Atomics> {
  void run(int thread) override {
    if (thread != publisher) return this->read();
    for (int k = 0; k < Publications; ++k) this->publish();
  }
};

// Version 1 is there before; each publication frees the one before it, if it may.
template <int Readers, int Publications, int Kept = 1, int Places = 1, class Atomics = model_atomics>
struct replaced : beside_publisher<Readers, Kept, Places, Atomics> {
  replaced() { this->publish(); }
  void run(int thread) override {
    if (thread != publisher) return this->read();
    for (int k = 0; k < Publications; ++k) this->publish();
    this->models.collect();
  }
};

// Versions that one thread reads one after the other don't go back.
struct read_twice : beside_publisher<1, 1> {
  read_twice() { this->publish(); }
  void run(int thread) override {
    if (thread == publisher) {
      publish();
      return publish();
    }
    const index_t first = look(models.read());
    if (look(models.read()) < first) explorer::current().fail("a version older than the one before");
  }
};
// Two readings at once, of which the older one keeps both.
struct read_both : beside_publisher<1, 1, 2> {
  read_both() { this->publish(); }
  void run(int thread) override {
    if (thread == publisher) return publish();
    const reading one = models.read();
    const reading another = models.read();
    look(another);
    look(one);
  }
};

// 1 and 2 are kept; 2 is given up, 1 is current again, and then 3.
template <int Readers, bool PublishesAgain, class Atomics = model_atomics>
struct rolled_back : beside_publisher<Readers, 2, 1, Atomics> {
  rolled_back() {
    this->publish();
    this->publish();
  }
  void run(int thread) override {
    if (thread != publisher) return this->read();
    if (this->models.roll_back().value() != 1) explorer::current().fail("not the version before");
    if (PublishesAgain) this->publish();
    this->models.collect();
  }
};
// 1 is current for a second time, and then neither current nor kept.
struct current_twice : beside_publisher<1, 2> {
  current_twice() {
    publish();
    publish();
  }
  void run(int thread) override {
    if (thread != publisher) return read();
    static_cast<void>(models.roll_back());
    publish();
    publish();
  }
};

// A reading passes to another thread, which uses and ends it.
template <class Atomics = model_atomics>
struct reading_moves : beside_publisher<2, 1, 1, Atomics> {
  using base = beside_publisher<2, 1, 1, Atomics>;
  reading_moves() { this->publish(); }
  void run(int thread) override {
    if (thread == publisher) {
      this->publish();
      this->models.collect();
    } else if (thread == 1) {
      moved = this->models.read();
      this->look(moved);
      handed.store(1, release);
    } else if (handed.load(acquire) != 0) {
      const typename base::reading mine = std::move(moved);
      this->look(mine);
    }
  }
  void finish() override {
    moved = {};
    base::finish();
  }
  model_atomic<std::uint32_t> handed{0};
  typename base::reading moved;
};

const std::vector<tried_case> cases = {
    {"from nothing: read | publish", explore_case<from_nothing<1, 1>>},
    {"from nothing: read | publish x2", explore_case<from_nothing<1, 2>>},
    {"from nothing: read | read | publish", explore_case<from_nothing<2, 1>>, 1},
    {"read | publish", explore_case<replaced<1, 1>>},
    {"read | publish x2", explore_case<replaced<1, 2>>, 1},
    {"read | publish x2, two kept", explore_case<replaced<1, 2, 2>>, 1},
    {"read | read | publish", explore_case<replaced<2, 1>>, 1},
    {"2 places: read | read | publish", explore_case<replaced<2, 1, 1, 2>>, 1},
    {"read read | publish x2", explore_case<read_twice>, 1},
    {"two readings at once | publish", explore_case<read_both>, 1},
    {"read | roll back", explore_case<rolled_back<1, false>>},
    {"read | roll back, publish", explore_case<rolled_back<1, true>>, 1},
    {"read | read | roll back", explore_case<rolled_back<2, false>>, 1},
    {"read | roll back, publish x2", explore_case<current_twice>, 1},
    {"read | another thread ends it | publish", explore_case<reading_moves<>>, 1},
};

TEST_CASE(
    "versions: nobody reads a version that is not whole or was freed, in every order of a few threads") {
  CHECK(each_holds(cases) > 10'000);
}

const std::vector<broken_site> stronger = {
    {access::model_publish, "model_publish"},
    {access::model_seen, "model_seen"},
};

TEST_CASE("versions: each access stronger than relaxed is needed by some scenario") {
  each_is_caught(cases, stronger);
}
TEST_CASE("versions: so is each of the pins that they are freed by") {
  each_is_caught(cases, {{access::pin_enter, "pin_enter", mutant::omit},
                         {access::crowd_enter, "crowd_enter", mutant::omit},
                         {access::pin_leave, "pin_leave"},
                         {access::pin_seen, "pin_seen"},
                         {access::pin_fence, "pin_fence", mutant::omit, true, false},
                         {access::unlink_fence, "unlink_fence", mutant::omit},
                         {access::epoch_next, "epoch_next"}});
}

TEST_CASE("versions: each mistake of a reader or a publisher is caught") {
  const char* const race = "data race";
  must_be_caught("the version loaded before the pin",
                 {"", explore_case<replaced<1, 1, 1, 1, loads_before_pin>>}, race);
  must_be_caught("freed without a look at the pins", {"", explore_case<replaced<1, 1, 1, 1, sees_no_pins>>},
                 race);
  must_be_caught("replaced after the end of the epoch",
                 {"", explore_case<replaced<1, 1, 1, 1, ends_before_store>>}, race);
  must_be_caught("the pin left before the reading ends",
                 {"", explore_case<replaced<1, 1, 1, 1, leaves_early>>}, race);
  must_be_caught("freed without a look, after roll_back",
                 {"", explore_case<rolled_back<1, false, sees_no_pins>>}, race);
  must_be_caught("freed without a look, another thread reads",
                 {"", explore_case<reading_moves<sees_no_pins>>, 1}, race);
}

TEST_CASE("versions: no access of the source that is stronger than relaxed is left out of the list") {
  static_cast<void>(explore_case<replaced<1, 1>>({}, {.executions = 10}));
  all_are_listed(stronger, {access::model_publish});
}

}  // namespace
