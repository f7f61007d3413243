#include "event_file.hpp"

#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "models/ctr_data.hpp"

namespace ctr {

namespace {

constexpr std::array<std::uint32_t, 256> castagnoli = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t sum = byte;
    for (int bit = 0; bit < 8; ++bit) sum = sum >> 1 ^ ((sum & 1) != 0 ? 0x82f63b78U : 0);
    table[byte] = sum;
  }
  return table;
}();

template <class T>
void put_number(std::string& to, T value) {
  for (std::size_t byte = 0; byte < sizeof value; ++byte) {
    to += static_cast<char>(static_cast<std::uint64_t>(value) >> 8 * byte & 0xff);
  }
}

// Fields of a protocol buffer: their number and wire type, then the value.
enum wire_type : std::uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void put_varint(std::string& to, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) to += static_cast<char>(value | 0x80);
  to += static_cast<char>(value);
}
void put_field(std::string& to, int number, wire_type type) {
  put_varint(to, static_cast<std::uint64_t>(number) << 3 | type);
}
void put_bytes(std::string& to, int number, std::string_view value) {
  put_field(to, number, wire_type::bytes);
  put_varint(to, value.size());
  to += value;
}

std::string record(std::string_view event) {
  std::string made;
  put_number(made, std::uint64_t{event.size()});
  put_number(made, masked_checksum(made));
  made += event;
  put_number(made, masked_checksum(event));
  return made;
}

std::string event_at(double wall_time) {
  std::string event;
  put_field(event, 1, wire_type::fixed64);
  put_number(event, std::bit_cast<std::uint64_t>(wall_time));
  return event;
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::uint32_t masked_checksum(std::string_view bytes) {
  std::uint32_t sum = 0xffffffffU;
  for (const char byte : bytes) {
    sum = sum >> 8 ^ castagnoli[(sum ^ static_cast<unsigned char>(byte)) & 0xff];
  }
  return std::rotr(~sum, 15) + 0xa282ead8U;
}

std::string scalar_record(std::string_view tag, double value, index_t step, double wall_time) {
  std::string scalar;
  put_bytes(scalar, 1, tag);
  put_field(scalar, 2, wire_type::fixed32);
  put_number(scalar, std::bit_cast<std::uint32_t>(static_cast<float>(value)));
  std::string summary;
  put_bytes(summary, 1, scalar);
  std::string event = event_at(wall_time);
  put_field(event, 2, wire_type::varint);
  put_varint(event, static_cast<std::uint64_t>(step));
  put_bytes(event, 5, summary);
  return record(event);
}

event_file::event_file(const std::string& folder) {
  std::error_code wrong;
  std::filesystem::create_directories(folder, wrong);
  if (wrong) throw failure("cannot write " + folder + ": " + wrong.message());
  const auto seconds = static_cast<long long>(wall_time());
  for (int again = 0; file_ == nullptr; ++again) {  // files of one second have a number more
    path_ = folder + "/events.out.tfevents." + std::to_string(seconds) + ".train_ctr." +
            std::to_string(::getpid()) + '.' + std::to_string(again);
    file_ = std::fopen(path_.c_str(), "wxe");
    if (file_ == nullptr && errno != EEXIST) {
      throw failure("cannot write " + path_ + ": " + std::strerror(errno));
    }
  }
  std::string first = event_at(wall_time());
  put_bytes(first, 3, "brain.Event:2");
  write(record(first));
}
event_file::~event_file() { std::fclose(file_); }

void event_file::scalar(std::string_view tag, double value, index_t step) {
  write(scalar_record(tag, value, step, wall_time()));
}
void event_file::write(std::string_view record) {
  if (std::fwrite(record.data(), 1, record.size(), file_) != record.size() || std::fflush(file_) != 0) {
    throw failure("cannot write " + path_ + ": " + std::strerror(errno));
  }
}

}  // namespace ctr
