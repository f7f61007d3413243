// The queues: in one thread, which is what the calls cost by themselves, and between two threads on a CPU
// each.
#include <deeprec/deeprec.hpp>  // in every commit; folders move

#include "queue/harness.hpp"
#include "support/bodies.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bodies_of;
using queue_bench::wait;

template <class Ring>
struct ring_of {
  explicit ring_of(std::size_t capacity) : q(capacity) {}
  template <class T>
  void push(const T& v) {
    static_cast<void>(q.push(v));
  }
  template <class T>
  void pop(T& v) {
    static_cast<void>(q.pop(v));
  }
  Ring q;
};
struct staged {
  explicit staged(std::size_t capacity) : q(capacity) {}
  void push(std::uint64_t v) { static_cast<void>(q.put(v)); }
  void pop(std::uint64_t& v) { v = *q.take(); }
  staging_queue<std::uint64_t> q;
};
using spsc = ring_of<spsc_ring<std::uint64_t, spin_wait>>;
using parking = ring_of<spsc_ring<std::uint64_t>>;
using mpmc = ring_of<mpmc_ring<std::uint64_t>>;

/// Fills half of the queue and empties it, again and again.
template <class Queue>
struct alone {
  static constexpr std::uint64_t rounds = 64, half = 512;
  static constexpr double items = double(rounds) * half;

  explicit alone(const host&) : queue(2 * half) {}
  void run() { static_cast<void>(checksum()); }
  std::uint64_t checksum() {
    std::uint64_t sum = 0, item = 0;
    for (std::uint64_t r = 0; r < rounds; ++r) {
      for (std::uint64_t k = 0; k < half; ++k) queue.push(r * half + k);
      for (std::uint64_t k = 0; k < half; ++k) {
        queue.pop(item);
        sum = sum * 31 + item;
      }
    }
    must(sum != 0);
    return sum;
  }
  Queue queue;
};

enum class way { there, there_and_back };

template <class Queue, way Way, int Capacity, int Items>
struct between {
  static constexpr double items = Items;

  explicit between(const host&) {
    if (std::thread::hardware_concurrency() < 2) throw absent("fewer than two processors");
  }
  void run() {
    const queue_bench::spec s{.capacity = Capacity, .items = Items};
    const double seconds = Way == way::there ? queue_bench::spsc<Queue, std::uint64_t, wait::own>(s)
                                             : queue_bench::round_trip<Queue, std::uint64_t, wait::own>(s);
    if (seconds < 0) throw std::runtime_error("an item was lost or out of order");
  }
  std::uint64_t checksum() {
    run();
    return 0;
  }
};

}  // namespace

DEEPREC_BODIES(body<alone<spsc>>("queue/alone/spsc_ring", "item"),
               body<alone<mpmc>>("queue/alone/mpmc_ring", "item"),
               body<alone<staged>>("queue/alone/staging_queue", "item"),
               body<between<spsc, way::there, 1024, 200'000>>("queue/spsc/deep", "item", 2),
               body<between<mpmc, way::there, 1024, 100'000>>("queue/mpmc/1p1c", "item", 2),
               body<between<parking, way::there_and_back, 2, 20'000>>("queue/rtt_parking", "item", 2),
               body<between<staged, way::there, 2, 50'000>>("queue/staging/cap2", "item", 2))
