// The first 4096 bytes of a mapped file, in the byte order of the machine that wrote it.
//
//      0   magic, byte order, version, bytes of the header, bytes of the data, length of the description
//     64   description: what the data is, as text
//   3968   hash of all before
//   4032   state, 8 bytes in a line of their own: closed, or open for changes
//   4096   data
//
// All but the state is written once, before the file has its name.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include <deeprec/core/config.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

struct mapped_header {
  static constexpr std::size_t bytes = 4096;
  static constexpr std::size_t description_at = 64, hash_at = 3968, state_at = 4032;
  static constexpr std::size_t most_description = hash_at - description_at;
  static constexpr std::string_view magic{
      "\x89"
      "DRM\r\n\x1a\n",
      8};  // as that of table files
  static constexpr std::uint32_t byte_order = 0x01020304;
  static constexpr std::uint32_t version = 1;
  static constexpr std::uint64_t closed = 0x0064'6573'6f6c'6300;  // no state by chance
  static constexpr std::uint64_t changing = 0x6e65'706f'2d73'6900;

  using block = std::array<std::byte, bytes>;

  std::uint64_t data_bytes = 0;
  std::string description;
  std::uint64_t state = closed;

  /// @pre the description has at most most_description bytes
  [[nodiscard]] block encode() const {
    block all{};
    const auto put = [&](std::size_t at, const auto& value) {
      std::memcpy(all.data() + at, &value, sizeof(value));
    };
    std::memcpy(all.data(), magic.data(), magic.size());
    put(8, byte_order);
    put(12, version);
    put(16, std::uint64_t{bytes});
    put(24, data_bytes);
    put(32, static_cast<std::uint32_t>(description.size()));
    std::memcpy(all.data() + description_at, description.data(), description.size());
    put(hash_at, hash_of(all));
    put(state_at, state);
    return all;
  }

  /// Of a file of file_bytes bytes, of which `there` are in the block.
  static result<mapped_header> decode(const block& all, std::size_t there, std::uint64_t file_bytes) {
    const auto bad = [](std::string why) { return fault(errc::invalid_value, std::move(why)); };
    const auto get = [&](std::size_t at, auto value) {
      std::memcpy(&value, all.data() + at, sizeof(value));
      return value;
    };
    if (file_bytes == 0) return bad("an empty file");
    if (std::memcmp(all.data(), magic.data(), (std::min)(there, magic.size())) != 0)
      return bad("no mapped file: the first 8 bytes are others");
    const auto truncated = [&](std::uint64_t whole) {
      return bad("truncated: ends at byte " + std::to_string(file_bytes) + " of " + std::to_string(whole));
    };
    if (there < bytes) return truncated(bytes);
    const auto order = get(8, std::uint32_t{});
    if (order == __builtin_bswap32(byte_order))
      return fault(errc::unsupported, "was written by a machine of the other byte order (byte 8)");
    if (order != byte_order) return bad("corrupted: the byte order at byte 8 is none");
    if (get(hash_at, std::uint64_t{}) != hash_of(all))
      return bad("corrupted: the checksum of bytes 0 to " + std::to_string(hash_at) + " is another");
    if (const auto is = get(12, std::uint32_t{}); is != version || get(16, std::uint64_t{}) != bytes)
      return fault(errc::unsupported, "version " + std::to_string(is) +
                                          " of the format (byte 12); this reads " + std::to_string(version));
    mapped_header read;
    read.data_bytes = get(24, std::uint64_t{});
    const auto length = get(32, std::uint32_t{});
    if (length > most_description || read.data_bytes > INT64_MAX - bytes)
      return bad("corrupted: a length can't be");
    if (file_bytes < bytes + read.data_bytes) return truncated(bytes + read.data_bytes);
    if (file_bytes > bytes + read.data_bytes)
      return bad("corrupted: has " + std::to_string(file_bytes) + " bytes instead of " +
                 std::to_string(bytes + read.data_bytes));
    read.description.assign(reinterpret_cast<const char*>(all.data()) + description_at, length);
    read.state = get(state_at, std::uint64_t{});
    if (read.state != closed && read.state != changing)
      return bad("corrupted: the state at byte " + std::to_string(state_at) + " is none");
    return read;
  }

 private:
  static std::uint64_t hash_of(const block& all) noexcept {
    return hash_bytes({reinterpret_cast<const char*>(all.data()), hash_at});
  }
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
