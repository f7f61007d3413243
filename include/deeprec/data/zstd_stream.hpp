// Text of a zstd file, decompressed while it is read. Needs libzstd: the component deeprec::zstd.
//
//   log.tsv.zst ──> [ frame | frame | ... ] ──> text
//
//   auto reader = read_stream(pool, criteo_format{}, path, std::make_unique<zstd_stream>(path)).or_throw();
#pragma once

#include <zstd.h>
#include <zstd_errors.h>

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

/// The decompressed text of a zstd file, of all its frames. Zeros and line ends behind one are ignored.
///
/// @threads one thread at a time
/// @error   read: io_error for what is truncated, corrupt, followed by other bytes, no zstd file, or made
///          with a window above 128 MB
class zstd_stream final : public text_stream {
 public:
  explicit zstd_stream(std::string path) : zstd_stream(std::make_unique<file_stream>(std::move(path))) {}
  /// Of the compressed bytes of another stream, such as a pipe.
  ///
  /// @pre from is no null
  explicit zstd_stream(std::unique_ptr<text_stream> from) noexcept : from_(std::move(from)) {}

  [[nodiscard]] status open() noexcept override {
    if (const status s = from_.open(); !s) return s;
    if (!engine_) engine_.reset(::ZSTD_createDCtx());
    if (!engine_) return {errc::out_of_memory, "memory must provide room for zstd (it refused)"};
    ::ZSTD_DCtx_reset(engine_.get(), ZSTD_reset_session_only);
    begun_ = in_frame_ = has_more_ = false;
    return {};
  }
  [[nodiscard]] status read(char* to, index_t bytes, index_t& got) noexcept override {
    got = 0;
    while (got == 0) {
      std::string_view from = from_.held();
      if (!has_more_) {
        if (const status s = from_.peek(from); !s) return s;
        if (from.empty() && !in_frame_) return {};
        if (begun_ && !in_frame_ && detail::is_padding(from[0])) {
          from_.drop(1);
          continue;
        }
      }
      ZSTD_inBuffer in{from.data(), from.size(), 0};
      ZSTD_outBuffer out{to, static_cast<std::size_t>(bytes), 0};
      const std::size_t left = ::ZSTD_decompressStream(engine_.get(), &out, &in);
      if (::ZSTD_isError(left) != 0) {
        const bool at_begin = !in_frame_ && ::ZSTD_getErrorCode(left) == ZSTD_error_prefix_unknown;
        if (at_begin) return begun_ ? detail::followed_text : detail::other_kind(from);
        return refusal(::ZSTD_getErrorCode(left));
      }
      from_.drop(in.pos);
      got = static_cast<index_t>(out.pos);
      in_frame_ = left != 0;
      begun_ = begun_ || !in_frame_;
      const bool had_more = std::exchange(has_more_, in_frame_ && out.pos == out.size);
      if (from.empty() && !had_more && got == 0 && in_frame_) return detail::truncated_text;
    }
    return {};
  }
  void close() noexcept override { from_.close(); }
  [[nodiscard]] index_t bytes_read() const noexcept override { return from_.bytes_read(); }
  [[nodiscard]] bool ready(std::chrono::milliseconds most) noexcept override {
    return has_more_ || from_.ready(most);
  }

 private:
  struct release {
    void operator()(ZSTD_DCtx* engine) const noexcept { ::ZSTD_freeDCtx(engine); }
  };
  static status refusal(ZSTD_ErrorCode code) noexcept {
    if (code == ZSTD_error_memory_allocation)
      return {errc::out_of_memory, "memory must provide room for zstd (it refused)"};
    if (code == ZSTD_error_frameParameter_windowTooLarge)
      return {errc::io_error, "the compressed text needs a window above 128 MB"};
    return detail::corrupt_text;
  }

  detail::compressed_bytes from_;
  std::unique_ptr<ZSTD_DCtx, release> engine_;
  bool begun_ = false;  // the first frame was read
  bool in_frame_ = false;
  bool has_more_ = false;  // the last read() had no room for all of its text
};

}}  // namespace deeprec::DEEPREC_ABI
