// What is no text of a known encoding, by its first bytes: what it is and what to do, in words.
#pragma once

#include <string_view>

#include <deeprec/core/config.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Null for text.
inline const char* kind_beside_text(std::string_view begin) noexcept {
  using namespace std::string_view_literals;
  if (begin.size() >= 4 && (begin[0] & '\xf0') == 0x50 && begin.substr(1, 3) == "\x2a\x4d\x18"sv) {
    begin = "\x28\xb5\x2f\xfd"sv;  // a frame to be skipped, with which pzstd begins
  }
  constexpr struct {
    std::string_view bytes;
    const char* reason;
  } kinds[] = {
      {"\x1f\x8b\x08"sv, "is compressed by gzip. Fix: read it by a gzip_stream, or gzip -dc"},
      {"\x28\xb5\x2f\xfd"sv, "is compressed by zstd. Fix: read it by a zstd_stream, or zstd -dc"},
      {"\xfd\x37zXZ\0"sv, "is compressed by xz. Fix: xz -dc"},
      {"BZh91AY&SY"sv, "is compressed by bzip2. Fix: bzip2 -dc"},
      {"\x04\x22\x4d\x18"sv, "is compressed by lz4. Fix: lz4 -dc"},
      {"PK\x03\x04"sv, "is a zip archive. Fix: unzip -p"},
      {"PAR1\x15"sv, "is a Parquet file. Fix: write it as text, such as pandas.read_parquet, to_csv"},
      {"ARROW1\0"sv, "is an Arrow file. Fix: write it as text, such as pandas.read_feather, to_csv"},
  };
  for (const auto& kind : kinds) {
    if (begin.starts_with(kind.bytes)) return kind.reason;
  }
  if (begin.size() >= 4 &&
      ((begin.starts_with("\xff\xfe"sv) && begin[3] == '\0') || begin.starts_with("\xfe\xff\0"sv))) {
    return "is text in UTF-16. Fix: iconv -f UTF-16 -t UTF-8";
  }
  // A tar archive begins with the name of a file, in 100 bytes; the mark is far behind it.
  const bool tar = begin.size() >= 262 && begin[99] == '\0' && begin.substr(257, 5) == "ustar"sv;
  return tar ? "is a tar archive. Fix: tar -xO" : nullptr;
}

/// A parse_error where a source does not begin with text.
inline status expect_text(std::string_view begin) noexcept {
  const char* const reason = kind_beside_text(begin);
  return reason == nullptr ? status() : status(errc::parse_error, reason);
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
