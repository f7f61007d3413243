// Layout of a table file, in the byte order of the machine that wrote it.
//
//   start    64 bytes, the same in every version: magic, byte order, version, lengths, step, hash of these
//   header   numbers: name, kind, 8 bytes
//            tables: name, format, owner of the state (since version 2), rows, width, sizes
//            hash of all before
//   tables   table by table, cut into blocks: block_bytes of packed rows (the last one less), hash
//   end      hash of all blocks' hashes
//
// A packed row is its row_bytes followed by its optimizer state; gaps are not written. Checksums are the
// 64 bits of hash_bytes and not a CRC: plain multiplications at the speed of memory, with the same value on
// every machine. A block's hash is seeded with the header's hash and the block's number, and the end covers
// all of them: a block of another file, another position or an older save is detected as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

inline constexpr char table_file_magic[9] =
    "\x89"
    "DRT\r\n\x1a\n";  // like PNG's: text transfers break it
inline constexpr std::uint32_t table_file_byte_order = 0x01020304;
inline constexpr std::uint32_t table_file_version = 2;  // 1 is written where no state has an owner
inline constexpr std::size_t table_file_start_bytes = 64;
inline constexpr std::size_t table_file_hash_bytes = 8;
inline constexpr std::size_t table_file_longest_text = 65535;  // of a name, a format or an owner

inline std::uint64_t hash_of(const std::byte* bytes, std::size_t count, std::uint64_t seed = 0) noexcept {
  return hash_bytes({reinterpret_cast<const char*>(bytes), count}, seed);
}

/// The seed of block `number` in the file with this header; with_block folds a block's hash into the file's.
inline std::uint64_t block_seed(std::uint64_t header_hash, std::uint64_t number) noexcept {
  return mix64(header_hash + number);
}
inline std::uint64_t with_block(std::uint64_t file_hash, std::uint64_t block_hash) noexcept {
  return mix64(file_hash ^ block_hash) + 0x9e3779b97f4a7c15;
}

/// Appends numbers and strings.
class byte_writer {
 public:
  template <class T>
  void put(T value) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
  }
  template <class T>
  void put_at(std::size_t at, T value) {
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
  }
  void put_text(std::string_view text) {
    put(static_cast<std::uint32_t>(text.size()));
    const std::size_t at = bytes_.size();
    bytes_.resize(at + text.size());
    if (!text.empty()) std::memcpy(bytes_.data() + at, text.data(), text.size());
  }
  [[nodiscard]] const std::byte* data() const noexcept { return bytes_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }

 private:
  std::vector<std::byte> bytes_;
};

/// Reads them back; returns false, and reads nothing, when too few bytes are left.
class byte_reader {
 public:
  byte_reader(const std::byte* bytes, std::size_t count) noexcept : at_(bytes), left_(count) {}

  template <class T>
  [[nodiscard]] bool get(T& value) noexcept {
    if (left_ < sizeof(T)) return false;
    std::memcpy(&value, at_, sizeof(T));
    skip(sizeof(T));
    return true;
  }
  [[nodiscard]] bool get_text(std::string& text) {
    std::uint32_t length = 0;
    if (!get(length) || left_ < length) return false;
    text.assign(reinterpret_cast<const char*>(at_), length);
    skip(length);
    return true;
  }
  [[nodiscard]] std::size_t left() const noexcept { return left_; }

 private:
  void skip(std::size_t count) noexcept {
    at_ += count;
    left_ -= count;
  }

  const std::byte* at_;
  std::size_t left_;
};

/// Location of a table's rows and state in memory, as source or target of packed bytes.
template <class Byte>
struct packed_rows {
  Byte* data = nullptr;
  std::uint64_t row_bytes = 0, state_offset = 0, state_bytes = 0, stride = 0;
  Byte* const* addresses = nullptr;  // of each row, where they are not at a stride

  [[nodiscard]] std::uint64_t packed_bytes() const noexcept { return row_bytes + state_bytes; }

  /// Calls copy(memory, n) for the packed bytes [from, to), in order.
  template <class Copy>
  void each_piece(std::uint64_t from, std::uint64_t to, const Copy& copy) const {
    if (from >= to) return;
    const std::uint64_t packed = packed_bytes();
    if (addresses == nullptr && stride == packed && (state_bytes == 0 || state_offset == row_bytes)) {
      copy(data + from, static_cast<std::size_t>(to - from));
      return;
    }
    std::uint64_t number = from / packed;
    Byte* row = addresses != nullptr ? addresses[number] : data + number * stride;
    std::uint64_t in_row = from % packed;
    while (from < to) {
      const bool in_state = in_row >= row_bytes;
      const std::uint64_t part_left = (in_state ? packed : row_bytes) - in_row;
      const std::uint64_t count = part_left < to - from ? part_left : to - from;
      if (count > 0) {
        Byte* const piece = row + (in_state ? state_offset + (in_row - row_bytes) : in_row);
        copy(piece, static_cast<std::size_t>(count));
      }
      from += count;
      in_row += count;
      if (in_row == packed) {
        in_row = 0;
        ++number;
        if (from < to) row = addresses != nullptr ? addresses[number] : row + stride;
      }
    }
  }
};

/// sum = a * b + c; false when that exceeds the largest size of a file.
inline bool multiply_add(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t& sum) noexcept {
  const uint128 wide = static_cast<uint128>(a) * b + c;
  if (wide > static_cast<uint128>(INT64_MAX)) return false;
  sum = static_cast<std::uint64_t>(wide);
  return true;
}

/// The largest size in bytes of start and header with these numbers of entries.
inline std::uint64_t longest_header(std::uint32_t tables, std::uint32_t numbers) noexcept {
  constexpr std::uint64_t text = sizeof(std::uint32_t) + table_file_longest_text;
  constexpr std::uint64_t number = text + sizeof(std::uint32_t) + 8;
  constexpr std::uint64_t table = 3 * text + 5 * sizeof(index_t);
  return table_file_start_bytes + numbers * number + tables * table + table_file_hash_bytes;
}

/// length = bytes of a table's blocks with their hashes; false as above.
inline bool blocks_length(std::uint64_t bytes, std::uint64_t block_bytes, std::uint64_t& length) noexcept {
  const std::uint64_t blocks = bytes / block_bytes + (bytes % block_bytes != 0 ? 1 : 0);
  return multiply_add(blocks, table_file_hash_bytes, bytes, length);
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
