// Text of a gzip file, decompressed while it is read. Needs zlib: the component deeprec::zlib.
//
//   log.tsv.gz ──> [ member | member | ... ] ──inflate──> text       (cat a.gz b.gz > log.tsv.gz)
//
//   auto reader = read_stream(pool, criteo_format{}, path, std::make_unique<gzip_stream>(path)).or_throw();
#pragma once

#include <zlib.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/data/text_stream.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The decompressed text of a gzip file, of all its members. Zeros and line ends behind one are ignored.
///
/// @threads one thread at a time
/// @error   read: io_error for what is truncated, corrupt (by gzip's own checksum), followed by other bytes,
///          or no gzip file
class gzip_stream final : public text_stream {
 public:
  explicit gzip_stream(std::string path) : gzip_stream(std::make_unique<file_stream>(std::move(path))) {}
  /// Of the compressed bytes of another stream, such as a pipe.
  ///
  /// @pre from is no null
  explicit gzip_stream(std::unique_ptr<text_stream> from) noexcept : from_(std::move(from)) {}
  ~gzip_stream() override { close(); }

  [[nodiscard]] status open() noexcept override {
    if (std::exchange(has_engine_, false)) ::inflateEnd(&engine_);
    if (const status s = from_.open(); !s) return s;
    engine_ = {};
    constexpr int gzip_only = 15 + 16;
    if (::inflateInit2(&engine_, gzip_only) != Z_OK) {
      return {errc::out_of_memory, "memory must provide room for zlib (it refused)"};
    }
    has_engine_ = true;
    begun_ = in_member_ = has_more_ = false;
    return {};
  }
  [[nodiscard]] status read(char* to, index_t bytes, index_t& got) noexcept override {
    got = 0;
    while (got == 0) {
      std::string_view from = from_.held();
      if (!has_more_) {
        if (const status s = from_.peek(from); !s) return s;
      }
      if (!in_member_) {
        if (from.empty()) return begun_ ? status() : detail::truncated_text;
        if (begun_ && detail::is_padding(from[0])) {
          from_.drop(1);
          continue;
        }
        if (from[0] != '\x1f') return begun_ ? detail::followed_text : detail::other_kind(from);
        if (::inflateReset(&engine_) != Z_OK) return detail::corrupt_text;
        begun_ = in_member_ = true;
      }
      if (from.empty() && !has_more_) return detail::truncated_text;
      engine_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(from.data()));  // read only
      engine_.avail_in = static_cast<uInt>(from.size());
      engine_.next_out = reinterpret_cast<Bytef*>(to);
      engine_.avail_out = static_cast<uInt>(std::min<index_t>(bytes, 1 << 30));
      const uInt room = engine_.avail_out;
      const int done = ::inflate(&engine_, Z_NO_FLUSH);
      if (done == Z_MEM_ERROR) return {errc::out_of_memory, "memory must provide room for zlib (it refused)"};
      const bool waits = done == Z_BUF_ERROR && std::exchange(has_more_, false);
      if (done != Z_OK && done != Z_STREAM_END && !waits) return detail::corrupt_text;
      has_more_ = done == Z_OK && engine_.avail_out == 0;
      from_.drop(from.size() - engine_.avail_in);
      got = static_cast<index_t>(room - engine_.avail_out);
      if (done == Z_STREAM_END) in_member_ = false;
    }
    return {};
  }
  void close() noexcept override {
    if (std::exchange(has_engine_, false)) ::inflateEnd(&engine_);
    from_.close();
  }
  [[nodiscard]] index_t bytes_read() const noexcept override { return from_.bytes_read(); }
  [[nodiscard]] bool ready(std::chrono::milliseconds most) noexcept override {
    return has_more_ || from_.ready(most);
  }

 private:
  detail::compressed_bytes from_;
  z_stream engine_{};
  bool has_engine_ = false;
  bool begun_ = false;  // the first member
  bool in_member_ = false;
  bool has_more_ = false;  // the last read() had no room for all of its text
};

}}  // namespace deeprec::DEEPREC_ABI
