// The index of growing tables: batches of keys that it holds and that it does not, in the caches and beyond,
// and an index that grows from nothing.
#include <deeprec/deeprec.hpp>  // in every commit; folders move

#include <algorithm>
#include <memory_resource>
#include <vector>

#include "support/bodies.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bodies_of;

constexpr index_t batch = 4096;
// One for both commits, so that keys lie in the same buckets.
constexpr deeprec::detail::key_seed seed{
    0x243f6a8885a308d3, {0x13198a2e03707344, 0xa4093822299f31d1, 0x082efa98ec4e6c89, 0x452821e638d01377}};

/// Key i; its code is i + 1.
std::uint64_t key_of(index_t i) { return draw(41, static_cast<std::uint64_t>(i)); }

/// The keys [0, count), which both commits share.
std::uint64_t* keys_of(const host& h, index_t count) {
  return h.memory<std::uint64_t>("keys", count, [](std::uint64_t* to, index_t n) {
    for (index_t i = 0; i < n; ++i) to[i] = key_of(i);
  });
}

struct index_of {
  explicit index_of(std::pmr::memory_resource* memory) : index(readers, memory, seed) {}

  void put(const std::uint64_t* keys, index_t count) {
    std::vector<std::uint32_t> codes(batch);
    for (index_t i = 0; i < count; i += batch) {
      const index_t n = std::min(batch, count - i);
      for (index_t k = 0; k < n; ++k)
        codes[static_cast<std::size_t>(k)] = static_cast<std::uint32_t>(i + k + 1);
      must(index.put(ctx, keys + i, codes.data(), n));
    }
  }
  void find(const std::uint64_t* keys, std::uint32_t* codes) {
    const auto held = readers.enter();
    index.find(ctx.instruction_set, keys, batch, codes);
  }

  inline_executor here;
  context<inline_executor> ctx{here};
  reclaimer readers;
  key_index index;
};

template <index_t Keys, bool Present>
struct find {
  static constexpr index_t parts = Keys / batch;
  static constexpr double items = batch;

  explicit find(const host& h)
      : probes(h.memory<std::uint64_t>(
            "probes", parts * batch,
            [](std::uint64_t* to, index_t n) {
              for (index_t k = 0; k < n; ++k)
                to[k] = key_of(draw_below(42, static_cast<std::uint64_t>(k), Keys) + (Present ? 0 : Keys));
            })),
        codes(h.memory<std::uint32_t>("codes", batch)),
        turn(h, parts) {
    side.put(keys_of(h, Keys), Keys);
  }
  void run() { side.find(probes + turn.next() * batch, codes); }
  std::uint64_t checksum() {
    run();
    return checksum_of(codes, batch);
  }

  huge_page_resource memory;
  index_of side{&memory};
  std::uint64_t* probes;
  std::uint32_t* codes;
  turns turn;
};

template <index_t Keys>
struct put {
  static constexpr double items = Keys;
  static constexpr std::size_t bytes = Keys * 40 + (std::size_t{4} << 20);

  explicit put(const host& h) : keys(keys_of(h, Keys)), pages(h.memory<std::byte>("index", bytes)) {}
  void run() { static_cast<void>(checksum()); }
  std::uint64_t checksum() {
    std::pmr::monotonic_buffer_resource memory(pages, bytes);
    index_of side(&memory);
    side.put(keys, Keys);
    return static_cast<std::uint64_t>(side.index.size());
  }

  std::uint64_t* keys;
  std::byte* pages;
};

}  // namespace

DEEPREC_BODIES(body<find<32768, true>>("growing/find/present/keys:32K", "key"),
               body<find<(index_t{4} << 20), true>>("growing/find/present/keys:4M", "key"),
               body<find<(index_t{4} << 20), false>>("growing/find/absent/keys:4M", "key"),
               body<put<(index_t{1} << 18)>>("growing/put/keys:256K", "key"))
