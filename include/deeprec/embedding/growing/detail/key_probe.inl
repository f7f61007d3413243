// Codes of a batch of keys: blocks of 64, the lines of the next block on their way while one is compared.

/// Of keys [begin, end) of a block.
inline void locate_keys(const detail::key_directory& index, const std::uint64_t* keys, index_t n,
                        detail::key_homes& to) {
  index_t i = 0;
  for (; i + 8 <= n; i += 8) locate_eight(index, keys, to, i);
  if (i == n) return;
  std::uint64_t rest[8] = {};
  for (index_t k = 0; k < n - i; ++k) rest[k] = keys[i + k];
  detail::key_homes of_rest;
  locate_eight(index, rest, of_rest, 0);
  for (index_t k = 0; k < n - i; ++k) {
    to.hash[i + k] = of_rest.hash[k];
    to.home[i + k] = of_rest.home[k];
  }
}

/// The code of a key whose line is here; false where more than this line has to be read.
DEEPREC_INLINE bool read_line(std::uint64_t home, std::uint64_t hash, std::uint64_t key,
                              std::uint32_t& code) {
  const auto& line = *reinterpret_cast<const detail::key_bucket*>(home);
  const unsigned found = slots_with(line, key);
  if (found != 0) [[likely]] {
    const auto slot = static_cast<std::size_t>(__builtin_ctz(found));
    code = line.codes[slot].load(std::memory_order_acquire);
    return detail::is_held(code) && line.keys[slot].load(std::memory_order_relaxed) == key;
  }
  code = detail::code_free;
  if ((line.passed.load(std::memory_order_relaxed) >> (hash & 7) * 4 & 15) == 0) return true;
  __builtin_prefetch(&line + 1);
  return false;
}

/// The code of a key that its home line does not settle: line after line.
DEEPREC_APART inline std::uint32_t read_lines(const detail::key_directory& index, std::uint64_t hash,
                                              std::uint64_t key) {
  const auto segment = detail::segment_word<detail::std_atomics>::unpack(index.segment_of(hash));
  const auto last = static_cast<std::uint32_t>(segment.size() - 1);
  std::uint32_t at = detail::home_of(hash, segment.log2());
  for (index_t read = 0; read < segment.size(); ++read, at = (at + 1) & last) {
    const detail::key_bucket& line = segment.buckets()[at];
    for (unsigned found = slots_with(line, key); found != 0; found &= found - 1) {
      const auto slot = static_cast<std::size_t>(__builtin_ctz(found));
      const std::uint32_t code = line.codes[slot].load(std::memory_order_acquire);
      if (detail::is_held(code) && line.keys[slot].load(std::memory_order_relaxed) == key) return code;
    }
    if ((line.passed.load(std::memory_order_relaxed) >> (hash & 7) * 4 & 15) == 0) break;
  }
  return detail::code_free;
}

/// Writes the codes of keys, code_free for those that the index does not hold. Wait-free, under a pin.
inline void find_keys(region, const detail::key_directory& index, const std::uint64_t* keys, index_t n,
                      std::uint32_t* codes) noexcept {
  using detail::keys_at_once;
  detail::key_homes homes[2];
  if (n > 0) locate_keys(index, keys, (std::min)(n, keys_at_once), homes[0]);
  int turn = 0;
  for (index_t from = 0; from < n; from += keys_at_once, turn ^= 1) {
    const index_t count = (std::min)(n - from, keys_at_once);
    const index_t next = (std::min)(n - from - count, keys_at_once);
    const detail::key_homes& now = homes[turn];
    const bool whole = next == keys_at_once;
    if (!whole) locate_keys(index, keys + from + count, next, homes[turn ^ 1]);
    index_t late[keys_at_once];
    index_t lates = 0;
    for (index_t i = 0; i < count; ++i) {
      if (whole && i % 8 == 0) locate_eight(index, keys + from + count, homes[turn ^ 1], i);
      late[lates] = i;
      lates += read_line(now.home[i], now.hash[i], keys[from + i], codes[from + i]) ? 0 : 1;
    }
    for (index_t k = 0; k < lates; ++k)
      codes[from + late[k]] = read_lines(index, now.hash[late[k]], keys[from + late[k]]);
  }
}
