// One line of the key index, with atomic loads only: what any machine can run, and the thread sanitizer
// follows.

/// Of eight keys: hashes and homes, and their lines are prefetched.
DEEPREC_INLINE void locate_eight(const detail::key_directory& index, const std::uint64_t* keys,
                                 detail::key_homes& to, index_t at) {
  for (index_t i = at; i < at + 8; ++i) {
    const std::uint64_t h = index.hash(keys[i]);
    const std::uint64_t word = index.segment_of(h);
    const std::uint64_t home =
        (word & ~std::uint64_t{63}) + 64 * std::uint64_t{detail::home_of(h, static_cast<int>(word & 63))};
    to.hash[i] = h;
    to.home[i] = home;
    __builtin_prefetch(reinterpret_cast<const void*>(home));
  }
}

/// The slots of a bucket that show a key, a bit for each.
DEEPREC_INLINE unsigned slots_with(const detail::key_bucket& line, std::uint64_t key) {
  unsigned found = 0;
  for (unsigned s = 0; s < detail::key_bucket::slots; ++s)
    found |= static_cast<unsigned>(line.keys[s].load(std::memory_order_relaxed) == key) << s;
  return found;
}
