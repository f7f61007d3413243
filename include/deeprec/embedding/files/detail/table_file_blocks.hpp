// Building blocks of saving and loading tables: writing and checking the header of a file, and the passes
// over its blocks. The layout: table_file_layout.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <memory_resource>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/files/detail/table_file_layout.hpp>
#include <deeprec/embedding/files/named_table.hpp>
#include <deeprec/support/file_faults.hpp>
#include <deeprec/support/whole_file.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

struct read_header {
  table_file_info info;
  std::uint64_t hash = 0;
  std::uint64_t bytes = 0;  // of start and header: where the blocks begin
};

/// length = bytes of a table in a file; false when its numbers are invalid.
inline bool packed_length(const table_entry& t, std::uint64_t& length) noexcept {
  constexpr index_t most_floats = (std::numeric_limits<index_t>::max)() / 8;
  if (t.rows < 0 || t.width < 0 || t.row_bytes < 0 || t.state_floats < 0 || t.state_floats > most_floats) {
    return false;
  }
  std::uint64_t row = 0;
  return multiply_add(static_cast<std::uint64_t>(t.state_floats), sizeof(float),
                      static_cast<std::uint64_t>(t.row_bytes), row) &&
         multiply_add(static_cast<std::uint64_t>(t.rows), row, 0, length);
}

template <class Byte>
packed_rows<Byte> packed(const basic_named_table<Byte>& t) noexcept {
  return {t.data,
          static_cast<std::uint64_t>(t.row_bytes),
          static_cast<std::uint64_t>(t.state_offset),
          static_cast<std::uint64_t>(t.state_floats) * sizeof(float),
          static_cast<std::uint64_t>(t.stride_bytes),
          t.addresses};
}

/// The first fault of tables that a caller passed: invalid_value.
template <class Byte>
result<void> check_tables(std::span<const basic_named_table<Byte>> tables) {
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const basic_named_table<Byte>& t = tables[i];
    const auto bad = [&](const char* why) { return invalid("table " + in_quotes(t.name) + ": " + why); };
    if (t.name.empty()) return invalid("table " + std::to_string(i) + " has no name");
    for (std::size_t j = 0; j < i; ++j) {
      if (tables[j].name == t.name) return bad("two tables have this name");
    }
    std::uint64_t length = 0;
    if (!packed_length(t, length)) return bad("rows, width or sizes are negative or too large");
    if (t.rows == 0) continue;
    if (length > 0 && t.data == nullptr && t.addresses == nullptr) return bad("has rows but no memory");
    const bool fits =
        t.state_floats == 0 || (t.state_offset >= t.row_bytes &&
                                t.state_offset <= t.stride_bytes - t.state_floats * index_t{sizeof(float)});
    if (t.stride_bytes < t.row_bytes || !fits) return bad("row and state don't fit into the stride");
  }
  return {};
}

inline byte_writer header_of(std::span<const const_named_table> tables, const training_state& state,
                             std::uint64_t block_bytes, std::uint64_t blocks_bytes, std::uint64_t& hash) {
  const bool owners =
      std::any_of(tables.begin(), tables.end(), [](const auto& t) { return !t.state_owner.empty(); });
  byte_writer out;
  for (int i = 0; i < 8; ++i) out.put(table_file_magic[i]);
  out.put(table_file_byte_order);
  out.put(owners ? table_file_version : std::uint32_t{1});
  out.put(std::uint64_t{0});  // 16: bytes of start and header
  out.put(std::uint64_t{0});  // 24: bytes of the file
  out.put(block_bytes);
  out.put(state.step);
  out.put(static_cast<std::uint32_t>(tables.size()));
  out.put(static_cast<std::uint32_t>(state.numbers.size()));
  out.put(std::uint64_t{0});  // 56: hash of the 56 bytes before
  for (const named_number& number : state.numbers) {
    out.put_text(number.name);
    out.put(static_cast<std::uint32_t>(number.value.index()));
    std::visit([&](auto value) { out.put(value); }, number.value);
  }
  for (const const_named_table& t : tables) {
    out.put_text(t.name);
    out.put_text(t.format);
    if (owners) out.put_text(t.state_owner);
    for (const index_t n : {t.rows, t.width, t.row_bytes, t.stride_bytes, t.state_floats}) out.put(n);
  }
  const std::uint64_t header_bytes = out.size() + table_file_hash_bytes;
  out.put_at(16, header_bytes);
  out.put_at(24, header_bytes + blocks_bytes + table_file_hash_bytes);
  out.put_at(56, hash_of(out.data(), 56));
  hash = hash_of(out.data(), out.size());
  out.put(hash);
  return out;
}

/// Reads start and header of an open file; checks both, and the file's length.
inline result<read_header> read_header_of(const input_file& file) {
  const auto bad = [](errc code, std::string reason) { return fault(code, std::move(reason)); };
  constexpr auto corrupt = errc::invalid_value;
  const std::uint64_t size = file.size();
  if (size == 0) return bad(corrupt, "an empty file");
  std::byte start[table_file_start_bytes] = {};
  const auto there = static_cast<std::size_t>((std::min<std::uint64_t>)(size, table_file_start_bytes));
  if (const auto done = file.read(0, start, there); !done) return done.fault();
  if (std::memcmp(start, table_file_magic, (std::min)(there, std::size_t{8})) != 0) {
    return bad(corrupt, "no file of tables: the first 8 bytes are others");
  }
  const auto truncated = [&](std::uint64_t whole) {
    return bad(corrupt, "truncated: ends at byte " + std::to_string(size) + " of " + std::to_string(whole));
  };
  if (there < table_file_start_bytes) return truncated(table_file_start_bytes);
  byte_reader fields(start + 8, table_file_start_bytes - 8);
  std::uint32_t order = 0, version = 0, tables = 0, numbers = 0;
  std::uint64_t header_bytes = 0, file_bytes = 0, block_bytes = 0, step = 0, hash = 0;
  const bool complete = fields.get(order) && fields.get(version) && fields.get(header_bytes) &&
                        fields.get(file_bytes) && fields.get(block_bytes) && fields.get(step) &&
                        fields.get(tables) && fields.get(numbers) && fields.get(hash);
  if (!complete || (order != table_file_byte_order && order != __builtin_bswap32(table_file_byte_order))) {
    return bad(corrupt, "corrupted: the byte order at byte 8 is none");
  }
  if (order != table_file_byte_order) {
    return bad(errc::unsupported, "was written by a machine of the other byte order (byte 8)");
  }
  if (hash != hash_of(start, 56)) {
    return bad(corrupt, "corrupted: the checksum of bytes 0 to 56 is another");
  }
  if (version < 1 || version > table_file_version) {
    return bad(errc::unsupported, "version " + std::to_string(version) +
                                      " of the format (byte 12); this reads 1 to " +
                                      std::to_string(table_file_version));
  }
  if (size < file_bytes) return truncated(file_bytes);
  if (size > file_bytes) {
    return bad(corrupt,
               "corrupted: has " + std::to_string(size) + " bytes instead of " + std::to_string(file_bytes));
  }
  constexpr std::uint64_t least = table_file_start_bytes + table_file_hash_bytes;
  if (header_bytes < least || header_bytes > file_bytes - table_file_hash_bytes ||
      header_bytes > longest_header(tables, numbers)) {
    return bad(corrupt, "corrupted: the header's length at byte 16 can't be");
  }

  read_header read;
  // This length is not checked yet: it may be that of the whole file, and the file sparse.
  const std::unique_ptr<std::byte[]> bytes(new (std::nothrow)
                                               std::byte[static_cast<std::size_t>(header_bytes)]);
  if (bytes == nullptr) {
    return bad(errc::out_of_memory, "the header, of " + std::to_string(header_bytes) + " bytes");
  }
  if (const auto done = file.read(0, bytes.get(), static_cast<std::size_t>(header_bytes)); !done) {
    return done.fault();
  }
  const std::size_t hashed = static_cast<std::size_t>(header_bytes) - table_file_hash_bytes;
  read.hash = hash_of(bytes.get(), hashed);
  byte_reader stored(bytes.get() + hashed, table_file_hash_bytes);
  if (!stored.get(hash) || hash != read.hash) {
    return bad(corrupt, "corrupted: the checksum of bytes 0 to " + std::to_string(hashed) + " is another");
  }
  // The checksums match, but every number is still validated below.
  read.bytes = header_bytes;
  read.info.version = version;
  read.info.bytes = static_cast<index_t>(file_bytes);
  read.info.block_bytes = static_cast<index_t>(block_bytes);
  read.info.state.step = step;
  byte_reader entries(bytes.get() + table_file_start_bytes, hashed - table_file_start_bytes);
  bool sound = block_bytes > 0 && block_bytes <= static_cast<std::uint64_t>(INT64_MAX);
  for (std::uint32_t i = 0; sound && i < numbers; ++i) {
    named_number number;
    std::uint32_t kind = 0;
    index_t whole = 0;
    double real = 0;
    sound = entries.get_text(number.name) && entries.get(kind) && kind <= 1 &&
            (kind == 0 ? entries.get(whole) : entries.get(real));
    if (kind == 0) number.value = whole;
    if (kind == 1) number.value = real;
    read.info.state.numbers.push_back(std::move(number));
  }
  std::uint64_t expected = header_bytes + table_file_hash_bytes;
  for (std::uint32_t i = 0; sound && i < tables; ++i) {
    table_entry t;
    std::uint64_t length = 0, blocks = 0;
    sound = entries.get_text(t.name) && entries.get_text(t.format) &&
            (version == 1 || entries.get_text(t.state_owner)) && entries.get(t.rows) &&
            entries.get(t.width) && entries.get(t.row_bytes) && entries.get(t.stride_bytes) &&
            entries.get(t.state_floats) && packed_length(t, length) &&
            blocks_length(length, block_bytes, blocks) && multiply_add(1, expected, blocks, expected);
    read.info.tables.push_back(std::move(t));
  }
  if (!sound || entries.left() != 0 || expected != file_bytes) {
    return bad(corrupt, "corrupted: the numbers of the header don't fit together");
  }
  return read;
}

/// The first difference between a table of the file and the table to be filled: shape_mismatch, and
/// unsupported for the state of another optimizer.
inline result<void> check_shape(const table_entry& file, const table_entry& wanted) {
  const auto differ = [&](const char* what, const std::string& in_file, const std::string& here) {
    return misfit("table " + in_quotes(wanted.name) + ": " + what + ' ' + in_file + " in the file, " + here +
                  " here");
  };
  if (file.format != wanted.format) return differ("format", file.format, wanted.format);
  const std::pair<const char*, index_t table_entry::*> numbers[] = {
      {"rows", &table_entry::rows},
      {"width", &table_entry::width},
      {"row bytes", &table_entry::row_bytes},
      {"floats of state", &table_entry::state_floats}};
  for (const auto& [what, number] : numbers) {
    if (file.*number != wanted.*number) {
      return differ(what, std::to_string(file.*number), std::to_string(wanted.*number));
    }
  }
  if (file.state_owner != wanted.state_owner && !file.state_owner.empty() && !wanted.state_owner.empty()) {
    return fault(errc::unsupported, "table " + in_quotes(wanted.name) + ": the state of " + file.state_owner +
                                        " in the file, of " + wanted.state_owner + " here");
  }
  return {};
}

/// A block and its hash.
class block_buffer {
 public:
  explicit block_buffer(std::pmr::memory_resource* memory) : bytes_(memory) {}
  [[nodiscard]] bool reserve(std::uint64_t largest_block) {
#if DEEPREC_EXCEPTIONS
    try {
      bytes_.resize(static_cast<std::size_t>(largest_block) + table_file_hash_bytes);
    } catch (const std::bad_alloc&) {
      return false;
    } catch (const std::length_error&) {
      return false;
    }
#else
    bytes_.resize(static_cast<std::size_t>(largest_block) + table_file_hash_bytes);
#endif
    return true;
  }
  [[nodiscard]] std::byte* data() noexcept { return bytes_.data(); }

 private:
  std::pmr::vector<std::byte> bytes_;
};

/// Reads all blocks in order and checks them; calls use(i, from, bytes, count) for the packed bytes
/// [from, from + count) of table i, which returns a result<void>.
template <class Use>
result<void> read_blocks(const input_file& file, const read_header& header, block_buffer& buffer,
                         const Use& use) {
  std::uint64_t at = header.bytes;
  std::uint64_t number = 0;
  std::uint64_t file_hash = header.hash;
  const auto block_bytes = static_cast<std::uint64_t>(header.info.block_bytes);
  for (std::size_t i = 0; i < header.info.tables.size(); ++i) {
    std::uint64_t length = 0;
    (void)packed_length(header.info.tables[i], length);
    for (std::uint64_t from = 0; from < length; from += block_bytes, ++number) {
      const std::uint64_t count = (std::min)(block_bytes, length - from);
      const auto bytes = static_cast<std::size_t>(count);
      if (auto done = file.read(at, buffer.data(), bytes + table_file_hash_bytes); !done) return done;
      std::uint64_t stored = 0;
      std::memcpy(&stored, buffer.data() + bytes, sizeof(stored));
      const std::uint64_t hash = hash_of(buffer.data(), bytes, block_seed(header.hash, number));
      if (hash != stored) {
        return invalid("corrupted: table " + in_quotes(header.info.tables[i].name) +
                       ": the checksum of bytes " + std::to_string(at) + " to " + std::to_string(at + count) +
                       " is another");
      }
      file_hash = with_block(file_hash, hash);
      at += count + table_file_hash_bytes;
      if (auto done = use(i, from, static_cast<const std::byte*>(buffer.data()), bytes); !done) return done;
    }
  }
  std::uint64_t stored = 0;
  std::byte end[table_file_hash_bytes];
  if (auto done = file.read(at, end, sizeof(end)); !done) return done;
  std::memcpy(&stored, end, sizeof(stored));
  if (stored == file_hash) return {};
  return invalid("corrupted: the checksum of all blocks, at byte " + std::to_string(at) + ", is another");
}

/// Bytes of the largest block in a file with these tables.
template <class Entries>
std::uint64_t largest_block(std::uint64_t block_bytes, const Entries& tables) noexcept {
  std::uint64_t longest = 0;
  for (const table_entry& t : tables) {
    std::uint64_t length = 0;
    (void)packed_length(t, length);
    longest = (std::max)(longest, length);
  }
  return (std::min)(block_bytes, longest);
}

/// Moves packed bytes [from, from + count) of a table to its rows.
inline void unpack(const named_table& to, std::uint64_t from, const std::byte* bytes, std::size_t count) {
  packed(to).each_piece(from, from + count, [&](std::byte* piece, std::size_t n) {
    std::memcpy(piece, bytes, n);
    bytes += n;
  });
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
