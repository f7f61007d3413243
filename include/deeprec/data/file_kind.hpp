// What a file is, by its first bytes, where it is no text: what to do with it, in words.
//
//   file_begin begin = begin_of_file(head);     gzip and zstd are read by their streams, text as it is;
//   if (!begin.is_readable()) refuse(begin.reason);      anything else: "is a tar archive. Fix: tar -xO"
#pragma once

#include <cstdint>
#include <string_view>

#include <deeprec/core/config.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

enum class file_kind : std::uint8_t { text, gzip, zstd, other };

/// The kind of a file; for all but text, what it is and what to do.
struct file_begin {
  file_kind kind = file_kind::text;
  const char* reason = nullptr;

  /// Whether it is text, or what a gzip_stream or a zstd_stream makes text of.
  [[nodiscard]] bool is_readable() const noexcept { return kind != file_kind::other; }
};

/// The kind of a file with these first bytes; 262 are enough, and fewer for all but tar archives.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
inline file_begin begin_of_file(std::string_view begin) noexcept {
  using namespace std::string_view_literals;
  if (begin.size() >= 4 && (begin[0] & '\xf0') == 0x50 && begin.substr(1, 3) == "\x2a\x4d\x18"sv) {
    begin = "\x28\xb5\x2f\xfd"sv;  // a frame to be skipped, with which pzstd begins
  }
  constexpr struct {
    std::string_view bytes;
    file_begin is;
  } kinds[] = {
      {"\x1f\x8b\x08"sv,
       {file_kind::gzip, "is compressed by gzip. Fix: read it by a gzip_stream, or gzip -dc"}},
      {"\x28\xb5\x2f\xfd"sv,
       {file_kind::zstd, "is compressed by zstd. Fix: read it by a zstd_stream, or zstd -dc"}},
      {"\xfd\x37zXZ\0"sv, {file_kind::other, "is compressed by xz. Fix: xz -dc"}},
      {"BZh91AY&SY"sv, {file_kind::other, "is compressed by bzip2. Fix: bzip2 -dc"}},
      {"\x04\x22\x4d\x18"sv, {file_kind::other, "is compressed by lz4. Fix: lz4 -dc"}},
      {"PK\x03\x04"sv, {file_kind::other, "is a zip archive. Fix: unzip -p"}},
      {"7z\xbc\xaf\x27\x1c"sv, {file_kind::other, "is a 7z archive. Fix: 7z x -so"}},
      {"PAR1\x15"sv,
       {file_kind::other, "is a Parquet file. Fix: write it as text, such as pandas.read_parquet, to_csv"}},
      {"ARROW1\0"sv,
       {file_kind::other, "is an Arrow file. Fix: write it as text, such as pandas.read_feather, to_csv"}},
      {"FEA1\0"sv,
       {file_kind::other, "is a Feather file. Fix: write it as text, such as pandas.read_feather, to_csv"}},
      {"\xff\xff\xff\xff"sv,
       {file_kind::other, "is an Arrow stream. Fix: write it as text, such as pyarrow.ipc, to_csv"}},
      {"\xff\xfe\0\0"sv, {file_kind::other, "is text in UTF-32. Fix: iconv -f UTF-32 -t UTF-8"}},
      {"\0\0\xfe\xff"sv, {file_kind::other, "is text in UTF-32. Fix: iconv -f UTF-32 -t UTF-8"}},
  };
  for (const auto& kind : kinds) {
    if (begin.starts_with(kind.bytes)) return kind.is;
  }
  if (begin.size() >= 4 &&
      ((begin.starts_with("\xff\xfe"sv) && begin[3] == '\0') || begin.starts_with("\xfe\xff\0"sv))) {
    return {file_kind::other, "is text in UTF-16. Fix: iconv -f UTF-16 -t UTF-8"};
  }
  // A tar archive begins with the name of a file, in 100 bytes; the mark is far behind it.
  const bool tar = begin.size() >= 262 && begin[99] == '\0' && begin.substr(257, 5) == "ustar"sv;
  if (tar) return {file_kind::other, "is a tar archive. Fix: tar -xO"};
  return {};
}

namespace detail {

/// A parse_error where a source does not begin with text.
inline status expect_text(std::string_view begin) noexcept {
  const char* const reason = begin_of_file(begin).reason;
  return reason == nullptr ? status() : status(errc::parse_error, reason);
}

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
