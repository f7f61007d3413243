// One shard of the key index: a directory over segments, which split. One thread at a time.
//
//   words   | segment | segment | same segment | ...     2^bits of them, read without locks
//   facts   of each segment, at the first of its words
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/embedding/growing/detail/key_memory.hpp>
#include <deeprec/embedding/growing/detail/key_probe.hpp>
#include <deeprec/embedding/growing/detail/key_segment.hpp>
#include <deeprec/memory/reclaimer.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Keys of a batch that a shard is to hold: positions in the batch, and of all its keys what is known.
struct shard_keys {
  std::span<const std::uint32_t> positions;
  const std::uint64_t* hashes;
  const unsigned char* absent;  // whether the index does not hold the key
};

class key_shard {
 public:
  using segment = key_segment<std_atomics>;

  /// A shard of the shares [first, end) of the hashes; false where memory was refused.
  bool open(key_directory& directory, key_memory& memory, reclaimer& readers, std::size_t first,
            std::size_t end) noexcept {
    directory_ = &directory;
    memory_ = &memory;
    readers_ = &readers;
    first_share_ = first;
    end_share_ = end;
    words_ = static_cast<std::byte*>(memory.take(directory_bytes(0)));
    void* const buckets = memory.take(segment_bytes(least_log2));
    if (words_ == nullptr || buckets == nullptr) return false;
    place(0, {static_cast<key_bucket*>(buckets), least_log2});
    publish_root();
    return true;
  }

  [[nodiscard]] index_t keys() const noexcept { return keys_; }
  [[nodiscard]] index_t splits() const noexcept { return splits_; }

  /// Splits segments until the keys that are not held fit; false where memory was refused. The content stays.
  bool make_room(const shard_keys& batch) noexcept {
    for (bool done = false; !done;) {
      count_wanted(batch);
      done = true;
      for (const std::uint32_t k : batch.positions) {
        if (batch.absent[k] == 0) continue;
        const std::uint32_t first = first_of(batch.hashes[k]);
        if (facts(first).pass != pass_) continue;  // it was asked for another key
        if (has_room(first)) {
          facts(first).pass = 0;
        } else if (grow(first)) {
          done = false;  // counted anew
        } else {
          return false;
        }
      }
    }
    return true;
  }
  /// @pre there is room where the key is new
  void put(std::uint64_t hash, std::uint64_t key, std::uint32_t code, bool is_new) noexcept {
    const std::uint32_t first = first_of(hash);
    if (!is_new) {
      segment_at(first).change(hash, key, code);
      return;
    }
    segment_at(first).put(hash, key, code);
    ++facts(first).held;
    ++keys_;
  }
  /// Returns the code that the key had.
  std::uint32_t erase(std::uint64_t hash, std::uint64_t key) noexcept {
    const std::uint32_t first = first_of(hash);
    const std::uint32_t code = segment_at(first).find(hash, key);
    if (code == code_free) return code;
    segment_at(first).erase(hash, key);
    segment_facts& of_segment = facts(first);
    --of_segment.held;
    ++of_segment.erased;
    of_segment.last_erasure = readers_->epoch();
    --keys_;
    return code;
  }
  template <class F>
  void for_each(const F& f) const {
    for (std::uint32_t first = 0; first < size(); first += words_of(first)) segment_at(first).for_each(f);
  }

 private:
  using word_type = segment_word<std_atomics>;
  using atomic_word = std::atomic<std::uint64_t>;

  static constexpr int least_log2 = 2;
  static constexpr int most_log2 = 10;  // 64 KB
  // Of a directory: its block is one of key_memory's largest, and 64 shards hold more keys than there are
  // codes. Beyond, segments fill to the last slot.
  static constexpr int most_bits = 15;

  struct segment_facts {
    std::uint64_t last_erasure;
    std::uint32_t held;    // keys
    std::uint32_t erased;  // slots of erased keys, not free yet
    std::uint32_t wanted;  // keys of a batch that are to be added
    std::uint32_t pass;    // of `wanted`
    std::uint8_t depth;    // the bits of the hash that its keys share
  };
  static constexpr std::size_t directory_bytes(int bits) noexcept {
    return key_memory::block_for((sizeof(atomic_word) + sizeof(segment_facts)) << bits);
  }
  static constexpr std::size_t segment_bytes(int log2) noexcept {
    return key_memory::block_for(sizeof(key_bucket) << log2);
  }
  // Slots that are filled before a segment splits.
  static constexpr index_t limit_of(index_t capacity) noexcept { return capacity * 85 / 100; }

  [[nodiscard]] std::uint32_t size() const noexcept { return std::uint32_t{1} << bits_; }
  [[nodiscard]] atomic_word& word(std::uint32_t at) const noexcept {
    return reinterpret_cast<atomic_word*>(words_)[at];
  }
  [[nodiscard]] segment_facts& facts(std::uint32_t at) const noexcept {
    return reinterpret_cast<segment_facts*>(words_ + size() * sizeof(atomic_word))[at];
  }
  [[nodiscard]] segment segment_at(std::uint32_t at) const noexcept {
    return word_type::unpack(word(at).load(std::memory_order_relaxed));  // by the thread that wrote it
  }
  void place(std::uint32_t at, const segment& one) noexcept { word_type::store(word(at), one); }
  // How many words the segment of a word has, and the first of them.
  [[nodiscard]] std::uint32_t words_of(std::uint32_t at) const noexcept {
    return std::uint32_t{1} << (bits_ - facts(at).depth);
  }
  [[nodiscard]] std::uint32_t first_word(std::uint32_t at) const noexcept { return at & ~(words_of(at) - 1); }
  [[nodiscard]] std::uint32_t first_of(std::uint64_t hash) const noexcept {
    return first_word(directory_place(hash, bits_));
  }
  // Whoever reads a root gets a directory whose words were written before.
  void publish_root() noexcept {
    const std::uint64_t root = reinterpret_cast<std::uintptr_t>(words_) | static_cast<std::uint64_t>(bits_);
    for (std::size_t share = first_share_; share < end_share_; ++share) {
      directory_->roots[share].store(root, std_atomics::at(access::root_publish, std::memory_order_release));
    }
  }

  void count_wanted(const shard_keys& batch) noexcept {
    if (++pass_ == 0) pass_ = 1;  // 0: not counted
    for (const std::uint32_t k : batch.positions) {
      if (batch.absent[k] == 0) continue;
      segment_facts& of_segment = facts(first_of(batch.hashes[k]));
      if (of_segment.pass != pass_) {
        of_segment.pass = pass_;
        of_segment.wanted = 0;
      }
      ++of_segment.wanted;
    }
  }
  bool has_room(std::uint32_t first) noexcept {
    segment_facts& of_segment = facts(first);
    const index_t capacity = segment_at(first).capacity();
    const index_t limit = bits_ >= most_bits ? capacity - 1 : limit_of(capacity);
    const index_t held = index_t{of_segment.held} + of_segment.wanted;
    if (held + of_segment.erased <= limit) return true;
    // Slots become free by a pass over the segment, many at a time; what is erased between this and put()
    // takes none of them.
    if (held > limit || of_segment.erased * 32 < limit || !readers_->over(of_segment.last_erasure))
      return false;
    segment_at(first).free_erased();
    of_segment.erased = 0;
    return true;
  }
  // Writes a segment that is too full anew: of the size that its keys need, or as two.
  bool grow(std::uint32_t first) noexcept {
    const segment old = segment_at(first);
    const segment_facts before = facts(first);
    const index_t held = index_t{before.held} + before.wanted;
    int log2 = old.log2();
    while (log2 < most_log2 && held > limit_of(index_t{key_bucket::slots} << log2)) ++log2;
    // Where erased keys that readers keep fill it, it stays as large.
    const bool is_rebuilt = log2 > old.log2() || held <= limit_of(old.capacity()) * 4 / 5;
    // With one word it can't be two: twice as many words first, and then it is asked for again.
    if (!is_rebuilt && words_of(first) == 1) return bits_ < most_bits && double_directory();
    const int parts = is_rebuilt ? 1 : 2;
    std::array<key_bucket*, 2> made{};
    for (int p = 0; p < parts; ++p) {
      made[static_cast<std::size_t>(p)] = static_cast<key_bucket*>(memory_->take(segment_bytes(log2)));
      if (made[static_cast<std::size_t>(p)] == nullptr) {
        if (p == 1) memory_->give(made[0], segment_bytes(log2));
        return false;
      }
    }
    const int depth = before.depth + (parts - 1);
    std::array<std::uint32_t, 2> held_by{};
    old.for_each([&](std::uint64_t key, std::uint32_t code) {
      const std::uint64_t h = directory_->hash(key);
      const std::size_t part = parts == 1 ? 0 : directory_place(h, depth) & 1;
      segment(made[part], log2).put(h, key, code);
      ++held_by[part];
    });
    const std::uint32_t words = words_of(first), words_each = words / static_cast<std::uint32_t>(parts);
    for (std::uint32_t w = 0; w < words; ++w) {
      const std::size_t part = w / words_each;
      facts(first + w) = {0, held_by[part], 0, 0, 0, static_cast<std::uint8_t>(depth)};
      place(first + w, {made[part], log2});
    }
    memory_->retire(old.buckets(), segment_bytes(old.log2()));
    ++splits_;
    return true;
  }
  // Each word twice.
  bool double_directory() noexcept {
    auto* const made = static_cast<std::byte*>(memory_->take(directory_bytes(bits_ + 1)));
    if (made == nullptr) return false;
    key_shard twice = *this;
    twice.words_ = made;
    ++twice.bits_;
    for (std::uint32_t at = 0; at < size(); ++at) {
      for (std::uint32_t half = 0; half < 2; ++half) {
        twice.facts(2 * at + half) = facts(first_word(at));
        twice.facts(2 * at + half).pass = 0;
        twice.place(2 * at + half, segment_at(at));
      }
    }
    memory_->retire(words_, directory_bytes(bits_));
    *this = twice;
    publish_root();
    return true;
  }

  std::byte* words_ = nullptr;  // words of segments, then their facts
  int bits_ = 0;
  std::uint32_t pass_ = 0;
  index_t keys_ = 0;
  index_t splits_ = 0;
  key_directory* directory_ = nullptr;
  key_memory* memory_ = nullptr;
  reclaimer* readers_ = nullptr;
  std::size_t first_share_ = 0;
  std::size_t end_share_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
