// Every order in which two ranks that are threads exchange messages, one of which may give up, under weak
// memory. The accesses of thread_channel, weakened alone, are caught, and so is each mistake.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <vector>

#include <deeprec/comm/detail/thread_channel.hpp>
#include <deeprec/comm/exchange.hpp>
#include <deeprec/comm/message_header.hpp>
#include <deeprec/queue/wait_strategies.hpp>

#include "queue/model/cases.hpp"

namespace {

using namespace deeprec_test::model;
using deeprec::exchange;
using deeprec::index_t;
using deeprec::message_header;
using deeprec::queue_result;
using deeprec::detail::access;
using deeprec::detail::letter_state;

// Two blocks for each rank, of a number each. Reads and writes of the numbers are watched.
struct post {
  std::array<std::array<std::array<std::byte, sizeof(message_header) + 1>, 2>, 4> blocks{};
  std::array<watched, 4> numbers;  // of block k: what its payload is

  std::span<std::byte> block(int k) {
    auto& memory = blocks[static_cast<std::size_t>(k)][0];
    memory.back() = static_cast<std::byte>(k);
    return memory;
  }
  inline static post* current = nullptr;
};
struct watched_copy {
  static int block_of(const std::byte* payload) {
    for (int k = 0; k < 4; ++k) {
      if (post::current->block(k).data() + sizeof(message_header) == payload) return k;
    }
    return -1;
  }
  static void copy(std::byte* to, const std::byte* from, index_t) {
    const int value = post::current->numbers[static_cast<std::size_t>(block_of(from))].value();
    post::current->numbers[static_cast<std::size_t>(block_of(to))] = watched(value);
  }
};

// --- mistakes, as atomics that do something else --------------------------------------------------------

// The sender takes its blocks back while they are copied.
struct withdraws_at_once : model_atomics {
  template <class T>
  struct atomic : model_atomic<T> {
    using model_atomic<T>::model_atomic;
    T load(model_order o) const {
      const T seen = model_atomic<T>::load(o);
      if constexpr (std::is_same_v<T, letter_state>) {
        if (o.site == access::letter_withdraw && seen == letter_state::taking) return letter_state::taken;
      }
      return seen;
    }
  };
};
// The exchange of the sender ends when it has sent.
struct ends_when_sent : model_atomics {
  template <class T>
  struct atomic : model_atomic<T> {
    using model_atomic<T>::model_atomic;
    T load(model_order o) const {
      const T seen = model_atomic<T>::load(o);
      if constexpr (std::is_same_v<T, letter_state>) {
        if (o.site == access::letter_seen_taken && seen == letter_state::posted) return letter_state::taken;
      }
      return seen;
    }
  };
};

// --- scenarios ------------------------------------------------------------------------------------------

// Block r is what rank r sends, block 2 + r where it receives.
template <int Depth, class Atomics = model_atomics>
struct two_ranks : explorer::scenario {
  using channel_type = deeprec::detail::thread_channel<deeprec::park_wait, Atomics, watched_copy, Depth>;
  two_ranks() { post::current = &memory; }
  int threads() const override { return 2; }

  struct blocks {
    std::array<std::span<std::byte>, 2> to{}, from{};
    exchange x{};
  };
  void prepare(int me, int step, blocks& b) {
    const auto other = static_cast<std::size_t>(1 - me);
    b.to[other] = memory.block(me);
    b.from[other] = memory.block(2 + me);
    b.x = {.kind = deeprec::message_kind::rows, .step = step, .to = b.to, .from = b.from};
    memory.numbers[static_cast<std::size_t>(me)] = watched(10 * step + me);
  }
  // What has come is right, and both blocks are this rank's.
  void look(int me, int step, queue_result r) {
    const auto i = static_cast<std::size_t>(me);
    if (r == queue_result::ok) {
      ++happened.hits;
      if (memory.numbers[2 + i].value() != 10 * step + 1 - me)
        explorer::current().fail("another message than was sent");
    } else {
      ++happened.misses;
    }
    memory.numbers[i] = watched(-1);
    memory.numbers[2 + i] = watched(-1);
  }
  void trade(int me, int step) {
    blocks b;
    prepare(me, step, b);
    if (const deeprec::status s = channel.begin(me, b.x); !s) {
      if (s.code() != deeprec::errc::closed) explorer::current().fail("an exchange that was refused");
      return;
    }
    look(me, step, channel.wait(me, b.x, {}));
  }

  post memory;
  std::array<std::byte, 8192> bytes;
  std::pmr::monotonic_buffer_resource arena{bytes.data(), bytes.size(), std::pmr::null_memory_resource()};
  channel_type channel{2, false, 0, &arena};
};

template <int Exchanges, int Depth, class Atomics = model_atomics>
struct in_turn : two_ranks<Depth, Atomics> {
  void run(int me) override {
    for (int k = 0; k < Exchanges; ++k) this->trade(me, k);
  }
};
// Rank 0 gives up after it has begun; its blocks are its own at once.
template <class Atomics = model_atomics>
struct one_abandons : two_ranks<1, Atomics> {
  using base = two_ranks<1, Atomics>;
  void run(int me) override {
    if (me == 1) return this->trade(1, 0);
    typename base::blocks b;
    this->prepare(0, 0, b);
    if (!this->channel.begin(0, b.x).ok()) return;
    this->channel.abandon(0, {deeprec::errc::io_error, "of its own"});
    if (b.x.outcome.ok()) explorer::current().fail("an exchange that was abandoned has no fault");
    this->look(0, 0, queue_result::failed);
    ++happened.hits;
  }
};
// The messages are of two steps: both ranks see a fault, and no wait is without end.
struct another_step : two_ranks<1> {
  void run(int me) override {
    blocks b;
    prepare(me, me, b);
    if (!channel.begin(me, b.x).ok()) return;
    if (channel.wait(me, b.x, {}) != queue_result::failed)
      explorer::current().fail("messages of two steps are one exchange");
    look(me, me, queue_result::failed);
    ++happened.hits;
  }
};

const std::vector<tried_case> cases = {
    {"an exchange", explore_case<in_turn<1, 1>>, 1, 0, 60'000},
    {"two exchanges, one letter", explore_case<in_turn<2, 1>>, 0, 0, 60'000},
    {"two exchanges, two letters", explore_case<in_turn<2, 2>>, 0, 0, 60'000},
    {"rank 0 gives up", explore_case<one_abandons<>>, 1, 0, 60'000},
    {"messages of two steps", explore_case<another_step>, 1, 0, 60'000},
};

TEST_CASE(
    "letters: messages are whole, and blocks belong to one thread at a time, in every order of two ranks") {
  CHECK(each_holds(cases) > 10'000);
}

const std::vector<broken_site> stronger = {
    {access::letter_post, "letter_post"},         {access::letter_take, "letter_take"},
    {access::letter_taken, "letter_taken"},       {access::letter_seen_taken, "letter_seen_taken"},
    {access::letter_withdraw, "letter_withdraw"},
};

TEST_CASE("letters: each access stronger than relaxed is needed by some scenario") {
  each_is_caught(cases, stronger);
}

TEST_CASE("letters: each mistake of a sender is caught") {
  const char* const race = "data race";
  must_be_caught("blocks taken back while they are copied",
                 {"", explore_case<one_abandons<withdraws_at_once>>, 1}, race);
  must_be_caught("letters used again when they are sent",
                 {"", explore_case<in_turn<1, 1, ends_when_sent>>, 1}, "sleeps for ever");
}

TEST_CASE("letters: no access of the source that is stronger than relaxed is left out of the list") {
  static_cast<void>(explore_case<in_turn<1, 1>>({}, {.executions = 10}));
  all_are_listed(stronger, {access::letter_post});
}

}  // namespace
