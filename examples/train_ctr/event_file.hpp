// Scalars as TensorBoard reads them: a file of records, each a protocol buffer of an event.
//
//   length (8 bytes) | its checksum (4) | the event (length bytes) | its checksum (4)       little endian
//
//   Event     1: double wall_time    2: int64 step    3: string file_version    5: Summary
//   Summary   1: Value, repeated     Value   1: string tag    2: float simple_value
//
// A checksum is CRC-32C, rotated right by 15 and added 0xa282ead8, so that the checksum of bytes that hold
// checksums is no special one.
// Source: the record format of TFRecord and the files event.proto and summary.proto of TensorFlow; CRC-32C:
// Castagnoli et al. 1993.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include <deeprec/core/dtypes.hpp>

namespace ctr {

using deeprec::index_t;

/// Of CRC-32C.
[[nodiscard]] std::uint32_t masked_checksum(std::string_view bytes);
/// The event of one scalar, as a record.
[[nodiscard]] std::string scalar_record(std::string_view tag, double value, index_t step, double wall_time);

/// A new file of a folder, which is made where it is absent. Throws a failure.
class event_file {
 public:
  explicit event_file(const std::string& folder);
  ~event_file();
  event_file(const event_file&) = delete;
  event_file& operator=(const event_file&) = delete;

  void scalar(std::string_view tag, double value, index_t step);

 private:
  void write(std::string_view record);

  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace ctr
