// Every order in which readers find keys of the key index beside the thread that writes: slots, rows and
// segments that are used again, keys that go on to the next bucket, splits. Each access that is stronger than
// relaxed, weakened alone, is caught, and so is each mistake.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <deeprec/embedding/growing/detail/key_segment.hpp>
#include <deeprec/memory/reclaimer.hpp>

#include "queue/model/cases.hpp"

namespace {

using namespace deeprec_test::model;
using deeprec::detail::access;
using deeprec::detail::basic_key_bucket;
using deeprec::detail::code_free;
using deeprec::detail::key_segment;
using deeprec::detail::segment_word;

constexpr model_order relaxed{access::position, std::memory_order_relaxed};
constexpr model_order release{access::position, std::memory_order_release};
constexpr model_order acquire{access::position, std::memory_order_acquire};

// --- mistakes ------------------------------------------------------------------------------------------

enum class mistake {
  none,
  not_over,       // what was erased or replaced is used again without asking
  slot_not_over,  // the slot is, the row is not
  not_ended,      // the owner asks for the epoch before
  ends_before,    // the epoch ends, and then the key is erased
  no_pin          // the reader has none
};

// A reader takes the code without a second look at the key.
struct no_second_look : model_atomics {
  template <class T>
  struct atomic : model_atomic<T> {
    using model_atomic<T>::model_atomic;
    T load(model_order o) const {
      static std::array<T, max_threads + 1> last;
      T& seen = last[static_cast<std::size_t>(explorer::current().thread())];
      if (o.site != access::key_again) seen = model_atomic<T>::load(o);
      return seen;
    }
  };
};

// The writer publishes the code of a new key, and then stores the key.
struct code_before_key : model_atomics {
  inline static model_atomic<std::uint64_t>* late = nullptr;  // there is one writer
  inline static std::uint64_t its_key = 0;
  template <class T>
  struct atomic : model_atomic<T> {
    using model_atomic<T>::model_atomic;
    void store(T value, model_order o) {
      if constexpr (sizeof(T) == sizeof(std::uint64_t)) {
        if (o.site == access::key_write) {
          late = this;
          its_key = value;
          return;
        }
      }
      model_atomic<T>::store(value, o);
      if (o.site == access::code_publish && late != nullptr)
        std::exchange(late, nullptr)->store(its_key, relaxed);
    }
  };
};

// An erasure forgets all keys that went on from the bucket, instead of one.
struct counter_cleared : model_atomics {
  template <class T>
  struct atomic : model_atomic<T> {
    using model_atomic<T>::model_atomic;
    void store(T value, model_order o) {
      if (o.site == access::passed_count && value < before) value = 0;
      before = value;
      model_atomic<T>::store(value, o);
    }
    T before{};
  };
};

// --- scenarios -----------------------------------------------------------------------------------------

// One thread for each key that is sought; the last thread writes. A row holds the key that it belongs to.
template <class Atomics, mistake Wrong, std::uint64_t... Sought>
struct beside_writer : explorer::scenario {
  using segment = key_segment<Atomics>;
  using bucket = basic_key_bucket<Atomics>;

  int threads() const final { return static_cast<int>(sizeof...(Sought)) + 1; }
  void run(int thread) final {
    constexpr std::array<std::uint64_t, sizeof...(Sought)> sought{Sought...};
    const auto t = static_cast<std::size_t>(thread);
    if (t == sought.size()) return write();
    if constexpr (Wrong == mistake::no_pin) {
      look(sought[t]);
    } else {
      const auto pin = readers.enter();
      look(sought[t]);
    }
  }
  virtual void write() = 0;
  virtual void look(std::uint64_t key) = 0;

  // What a caller does with a code: it reads the row.
  std::uint32_t find(const segment& in, std::uint64_t key) {
    const std::uint32_t code = in.find(0, key);
    if (code == code_free) {
      ++happened.misses;
    } else {
      ++happened.hits;
      if (rows.at(code).value() != static_cast<int>(key)) explorer::current().fail("the row of another key");
    }
    return code;
  }
  void find_present(const segment& in, std::uint64_t key) {
    if (find(in, key) == code_free) explorer::current().fail("a key that is present is not found");
  }
  void give_row(std::uint32_t code, std::uint64_t key) { rows.at(code) = watched(static_cast<int>(key)); }

  // Whether what f unlinks may be used again.
  template <class F>
  bool is_over_after(const F& f) {
    std::uint64_t ended = 0;
    if constexpr (Wrong == mistake::ends_before) ended = readers.unlinked();
    f();
    if constexpr (Wrong == mistake::not_ended) ended = readers.epoch() - 1;
    if constexpr (Wrong != mistake::not_ended && Wrong != mistake::ends_before) ended = readers.unlinked();
    if (Wrong != mistake::not_over && !readers.over(ended)) return false;
    ++happened.reuses;
    return true;
  }
  deeprec::basic_reclaimer<1, model_atomics> readers;
  std::array<watched, 4> rows;
};

constexpr std::uint64_t a = 7, b = 9, c = 11;

template <class Atomics, mistake Wrong, std::uint64_t... Sought>
struct one_bucket : beside_writer<Atomics, Wrong, Sought...> {
  using base = beside_writer<Atomics, Wrong, Sought...>;
  one_bucket() {
    this->give_row(1, a);
    keys.put(0, a, 1);
  }
  void look(std::uint64_t key) override { static_cast<void>(base::find(keys, key)); }
  typename base::bucket line;
  const typename base::segment keys{&line, 0};
};

// a is erased; b gets its slot and its row.
template <class Atomics, mistake Wrong, std::uint64_t... Sought>
struct slot_and_row_reused : one_bucket<Atomics, Wrong, Sought...> {
  void write() override {
    if (!this->is_over_after([&] { this->keys.erase(0, a); })) return;
    this->give_row(1, b);
    this->keys.free_erased();
    this->keys.put(0, b, 1);
  }
};

// a is erased, and comes again: the same slot, the same row.
template <class Atomics, mistake Wrong, std::uint64_t... Sought>
struct same_key_again : one_bucket<Atomics, Wrong, Sought...> {
  void write() override {
    if (!this->is_over_after([&] { this->keys.erase(0, a); })) return;
    this->give_row(1, a);
    this->keys.free_erased();
    this->keys.put(0, a, 1);
  }
};

// a was erased long ago, and b gets its slot beside readers.
template <class Atomics, mistake Wrong, std::uint64_t... Sought>
struct dead_slot : one_bucket<Atomics, Wrong, Sought...> {
  dead_slot() { this->keys.erase(0, a); }
  void write() override {
    this->give_row(2, b);
    this->keys.free_erased();
    this->keys.put(0, b, 2);
  }
  void look(std::uint64_t key) override {
    if (this->find(this->keys, key) != code_free && key == a)
      explorer::current().fail("an erased key is found");
  }
};

// The slot belongs to a, to b, to a again. A reader that saw a twice, and between the code of b, would be
// wrong.
template <class Atomics, mistake Wrong, std::uint64_t... Sought>
struct there_and_back : one_bucket<Atomics, Wrong, Sought...> {
  static constexpr bool asks = Wrong != mistake::slot_not_over;
  void write() override {
    if (!this->is_over_after([&] { this->keys.erase(0, a); }) && asks) return;
    this->give_row(2, b);
    this->keys.free_erased();
    this->keys.put(0, b, 2);
    if (!this->is_over_after([&] { this->keys.erase(0, b); }) && asks) return;
    this->give_row(3, a);
    this->keys.free_erased();
    this->keys.put(0, a, 3);
  }
};

// Slots that are free show key 0, which is a key like any other.
template <class Atomics, mistake Wrong, std::uint64_t... Sought>
struct key_of_free_slots : one_bucket<Atomics, Wrong, Sought...> {
  void write() override {
    this->give_row(2, 0);
    this->keys.put(0, 0, 2);
  }
};

// a gets another row, and its old one belongs to b when that is over.
template <class Atomics, mistake Wrong, std::uint64_t... Sought>
struct row_changed : one_bucket<Atomics, Wrong, Sought...> {
  void write() override {
    this->give_row(2, a);
    if (this->is_over_after([&] { this->keys.change(0, a, 2); })) this->give_row(1, b);
  }
  void look(std::uint64_t key) override {
    if (key == a) {
      this->find_present(this->keys, a);
    } else {
      this->find(this->keys, key);
    }
  }
};

// The home of all keys is bucket 0; `present` and one more went on to bucket 1. A put fills bucket 0, the
// next one goes on, with a counter of its own, and the other key that did is erased.
template <class Atomics, std::uint64_t... Sought>
struct goes_on : explorer::scenario {
  static constexpr std::uint64_t first = 20, present = 30, erased = 31, fills = 40, follows = 41;
  static constexpr std::uint64_t hash_of(std::uint64_t key) { return key == follows ? 1 : 0; }
  using segment = key_segment<Atomics>;
  goes_on() {
    std::uint32_t code = 1;
    for (std::uint64_t k = 0; k < segment::slots; ++k) keys.put(0, first + k, code++);
    keys.put(0, present, code++);
    keys.put(0, erased, code++);
    keys.erase(0, first + 4);
  }
  int threads() const override { return static_cast<int>(sizeof...(Sought)) + 1; }
  void run(int thread) override {
    constexpr std::array<std::uint64_t, sizeof...(Sought)> sought{Sought...};
    const auto t = static_cast<std::size_t>(thread);
    if (t == sought.size()) return write();
    const bool must = sought[t] != follows || has_followed.load(acquire) != 0;
    const std::uint32_t found = keys.find(hash_of(sought[t]), sought[t]);
    ++(found != code_free ? happened.hits : happened.misses);
    if (must && found == code_free) explorer::current().fail("a key that is present is not found");
  }
  void write() {
    keys.free_erased();
    keys.put(0, fills, 11);
    keys.put(hash_of(follows), follows, 12);
    has_followed.store(1, release);
    keys.erase(0, erased);
  }
  std::array<basic_key_bucket<Atomics>, 2> lines;
  const segment keys{lines.data(), 1};
  model_atomic<std::uint32_t> has_followed{0};
};

// The segment of a and b splits; its memory is used again, and c comes into the segment of a.
template <class Atomics, mistake Wrong, bool Erases, std::uint64_t... Sought>
struct split : beside_writer<Atomics, Wrong, Sought...> {
  using base = beside_writer<Atomics, Wrong, Sought...>;
  using typename base::segment;
  using words = segment_word<Atomics>;
  split() {
    this->give_row(1, a);
    this->give_row(2, b);
    old.put(0, a, 1);
    old.put(0, b, 2);
    for (auto& word : directory) words::store(word, old);
  }
  void write() override {
    for (const segment& one : made) explorer::current().plain_write(one.buckets());
    old.for_each([&](std::uint64_t key, std::uint32_t code) { made[key == b].put(0, key, code); });
    const bool is_over = this->is_over_after([&] {
      for (std::size_t w = 0; w < 2; ++w) words::store(directory[w], made[w]);
      if (Erases) made[0].erase(0, a);
    });
    if (Erases) {
      if (is_over) this->give_row(1, c);
    } else {
      this->give_row(3, c);
      made[0].put(0, c, 3);
    }
    if (!is_over) return;
    explorer::current().plain_write(old.buckets());
    old.change(0, a, 3);  // as whoever gets the memory might
    old.change(0, b, 3);
  }
  void look(std::uint64_t key) override {
    const segment found = words::load(directory[key == b]);
    explorer::current().plain_read(found.buckets());
    const std::uint32_t code = this->find(found, key);
    if (code == code_free && key != c && !(Erases && key == a))
      explorer::current().fail("a key that is present is not found");
    explorer::current().plain_read(found.buckets());
  }
  std::array<typename base::bucket, 3> lines;
  const segment old{&lines[0], 0};
  const std::array<segment, 2> made{segment{&lines[1], 0}, segment{&lines[2], 0}};
  std::array<typename words::word, 2> directory;
};

// A directory of one word is replaced by one of two. These are the accesses of key_directory and key_index:
// they use std_atomics only, so their lines stand here again.
template <mistake Wrong, std::uint64_t... Sought>
struct directory_doubles : beside_writer<model_atomics, Wrong, Sought...> {
  using base = beside_writer<model_atomics, Wrong, Sought...>;
  using words = segment_word<model_atomics>;
  using word = words::word;
  directory_doubles() {
    this->give_row(1, a);
    keys.put(0, a, 1);
    words::store(old, keys);
    root.store(pack(&old), relaxed);
  }
  void write() override {
    explorer::current().plain_write(twice.data());
    for (word& one : twice) words::store(one, keys);
    const bool is_over = this->is_over_after([&] {
      root.store(pack(twice.data()), model_atomics::at(access::root_publish, std::memory_order_release));
    });
    if (!is_over) return;
    explorer::current().plain_write(&old);
    old.store(0, relaxed);
  }
  void look(std::uint64_t key) override {
    const auto* const at = reinterpret_cast<const word*>(
        root.load(model_atomics::at(access::root_seen, std::memory_order_acquire)));
    explorer::current().plain_read(at);
    const auto found = words::load(*at);
    if (found.buckets() == nullptr) return explorer::current().fail("a directory that holds something else");
    this->find_present(found, key);
    explorer::current().plain_read(at);
  }
  static std::uint64_t pack(const word* at) { return reinterpret_cast<std::uintptr_t>(at); }
  typename base::bucket line;
  const typename base::segment keys{&line, 0};
  word old;
  std::array<word, 2> twice;
  word root;
};

// --- what holds, and what is caught ----------------------------------------------------------------------

using enum mistake;
using plain = model_atomics;
using next = goes_on<plain>;

// Those that end soonest first.
const std::vector<tried_case> cases = {
    {"slot and row: find a | erase a, put b", explore_case<slot_and_row_reused<plain, none, a>>},
    {"slot and row: find b | erase a, put b", explore_case<slot_and_row_reused<plain, none, b>>},
    {"slot and row: find a | erase a, put a", explore_case<same_key_again<plain, none, a>>},
    {"slot of an erased key: find a | find b | put b", explore_case<dead_slot<plain, none, a, b>>},
    {"slot of a, of b, of a: find a | write", explore_case<there_and_back<plain, none, a>>},
    {"slot of a, of b, of a: find b | write", explore_case<there_and_back<plain, none, b>>},
    {"free slot: find 0 | put 0", explore_case<key_of_free_slots<plain, none, 0>>},
    {"another row: find a | change a", explore_case<row_changed<plain, none, a>>},
    {"next bucket: find one that went on | put put erase", explore_case<goes_on<plain, next::present>>},
    {"next bucket: find one that stayed | put put erase", explore_case<goes_on<plain, next::first>>},
    {"next bucket: find one that goes on | put put erase", explore_case<goes_on<plain, next::follows>>},
    {"next bucket: two readers | put put erase", explore_case<goes_on<plain, next::present, next::follows>>,
     1},
    {"split: find a | split", explore_case<split<plain, none, false, a>>},
    {"split: find b | split", explore_case<split<plain, none, false, b>>},
    {"split: find c | split", explore_case<split<plain, none, false, c>>},
    {"split, erase: find a | split, erase a", explore_case<split<plain, none, true, a>>},
    {"directory: find a | doubles", explore_case<directory_doubles<none, a>>},
    {"split: find a | find b | split", explore_case<split<plain, none, false, a, b>>, 1},
    {"slot and row: find a | find b | erase a, put b", explore_case<slot_and_row_reused<plain, none, a, b>>,
     1},
    {"slot and row: find a | find a | erase a, put b", explore_case<slot_and_row_reused<plain, none, a, a>>,
     1},
};

TEST_CASE("keys: a reader gets the row of its key, or none, in every order of a few threads") {
  CHECK(each_holds(cases) > 100'000);
}

// The others are relaxed. code_erase: who enters after unlinked() sees it, by the fences or by the epoch, and
// until then the key may be found. key_write, key_again: the key comes before its code by code_publish, and
// the second look, after code_seen, reads it or a newer one. key_seen: a hit is confirmed by the second look,
// and a key that a reader knows of is not missed. passed_count: the same; a put counts before it publishes,
// and nobody else uncounts it.
const std::vector<broken_site> stronger = {
    {access::code_publish, "code_publish"},
    {access::code_seen, "code_seen"},
    {access::segment_publish, "segment_publish"},
    {access::segment_seen, "segment_seen"},
};
// What key_directory and key_index do: see directory_doubles.
const std::vector<broken_site> of_directory = {
    {access::root_publish, "root_publish"},
    {access::root_seen, "root_seen"},
};

TEST_CASE("keys: each access stronger than relaxed is needed by some scenario") {
  each_is_caught(cases, stronger);
  each_is_caught(cases, of_directory);
}

TEST_CASE("keys: each store of the writer that is left out is caught") {
  each_is_caught(cases, {{access::key_write, "key_write", mutant::omit},
                         {access::code_erase, "code_erase", mutant::omit},
                         {access::passed_count, "passed_count", mutant::omit}});
}

TEST_CASE("keys: each mistake of a reader or a writer is caught") {
  const char* const race = "data race";
  const char* const wrong = "the row of another key";
  must_be_caught("no second look at the key", {"", explore_case<dead_slot<no_second_look, none, a>>}, wrong);
  must_be_caught("code before key", {"", explore_case<dead_slot<code_before_key, none, a>>}, wrong);
  must_be_caught("slot and row without over()", {"", explore_case<slot_and_row_reused<plain, not_over, a>>},
                 race);
  must_be_caught("row of the same key without over()", {"", explore_case<same_key_again<plain, not_over, a>>},
                 race);
  must_be_caught("old row without over()", {"", explore_case<row_changed<plain, not_over, a>>}, race);
  must_be_caught("slot without over(), twice", {"", explore_case<there_and_back<plain, slot_not_over, a>>},
                 wrong);
  must_be_caught("erased without unlinked()", {"", explore_case<slot_and_row_reused<plain, not_ended, a>>},
                 race);
  must_be_caught("erased after unlinked()", {"", explore_case<slot_and_row_reused<plain, ends_before, a>>},
                 race);
  must_be_caught("found without a pin", {"", explore_case<slot_and_row_reused<plain, no_pin, a>>}, race);
  must_be_caught("an erasure that uncounts others",
                 {"", explore_case<goes_on<counter_cleared, next::present>>},
                 "a key that is present is not found");
  must_be_caught("segment without over()", {"", explore_case<split<plain, not_over, false, a>>}, race);
  must_be_caught("segment without unlinked()", {"", explore_case<split<plain, not_ended, false, a>>}, race);
  must_be_caught("segment replaced after unlinked()", {"", explore_case<split<plain, ends_before, false, a>>},
                 race);
  must_be_caught("segment read without a pin", {"", explore_case<split<plain, no_pin, false, a>>}, race);
  must_be_caught("row of a split segment without over()", {"", explore_case<split<plain, not_over, true, a>>},
                 race);
  must_be_caught("directory without over()", {"", explore_case<directory_doubles<not_over, a>>}, race);
}

TEST_CASE("keys: no access of the source that is stronger than relaxed is left out of the list") {
  static_cast<void>(explore_case<split<plain, none, false, a>>({}, {}));
  all_are_listed(stronger, {access::code_publish});
}

}  // namespace
