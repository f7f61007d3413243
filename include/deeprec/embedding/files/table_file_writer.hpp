// A file of tables as a stream of bytes: table after table, row after row. The number of rows of each is in
// the header, so it is known before; which rows come when is the caller's. The file is that of save_tables.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory_resource>
#include <span>
#include <string>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/files/detail/table_file_blocks.hpp>
#include <deeprec/embedding/files/detail/table_file_layout.hpp>
#include <deeprec/embedding/files/named_table.hpp>
#include <deeprec/support/whole_file.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The file has its name when finish() returns its length; one that is destroyed before leaves nothing.
///
/// @threads exclusive
/// @error   as save_tables
class table_file_writer {
 public:
  explicit table_file_writer(std::pmr::memory_resource* memory) : buffer_(memory) {}

  /// Begins a file of these tables, of which only the entries are read: they outlive finish().
  [[nodiscard]] result<void> open(const std::string& path, std::span<const const_named_table> tables,
                                  const training_state& state, index_t block_bytes) {
    constexpr std::size_t most = (std::numeric_limits<std::uint32_t>::max)();
    if (block_bytes <= 0) return detail::invalid("block_bytes is not positive");
    if (tables.size() > most || state.numbers.size() > most)
      return detail::invalid("too many tables or numbers");
    tables_ = tables;
    block_bytes_ = static_cast<std::uint64_t>(block_bytes);
    std::uint64_t blocks_bytes = 0;
    for (const named_number& number : state.numbers) {
      if (auto done = check_text(number.name); !done) return done;
    }
    for (const const_named_table& t : tables) {
      for (const std::string* const text : {&t.name, &t.format, &t.state_owner}) {
        if (auto done = check_text(*text); !done) return done;
      }
      std::uint64_t length = 0, blocks = 0;
      if (!detail::packed_length(t, length) || !detail::blocks_length(length, block_bytes_, blocks) ||
          !detail::multiply_add(1, blocks_bytes, blocks, blocks_bytes)) {
        return detail::invalid("table " + detail::in_quotes(t.name) + ": too large for a file");
      }
    }
    const detail::byte_writer header =
        detail::header_of(tables, state, block_bytes_, blocks_bytes, header_hash_);
    if (!buffer_.reserve(detail::largest_block(block_bytes_, tables)))
      return status(errc::out_of_memory, "memory for a block was refused");
    if (auto done = file_.open(path); !done) return done;
    if (auto done = file_.write(header.data(), header.size()); !done) return done;
    file_bytes_ = header.size() + blocks_bytes + detail::table_file_hash_bytes;
    file_hash_ = header_hash_;
    next_table();
    return {};
  }

  /// The next packed bytes, of one row or several. After a fault they are passed over.
  ///
  /// @pre not more than all tables have
  void put(const std::byte* bytes, std::size_t count) {
    while (count > 0 && fault_) {
      DEEPREC_EXPECTS(left_ > 0);
      const std::uint64_t room = (std::min)(block_bytes_ - filled_, left_);
      const auto n = static_cast<std::size_t>((std::min)(room, std::uint64_t{count}));
      std::memcpy(buffer_.data() + filled_, bytes, n);
      bytes += n;
      count -= n;
      filled_ += n;
      left_ -= n;
      if (left_ > 0 && filled_ < block_bytes_) continue;
      write_block();
      if (left_ == 0) next_table();
    }
  }
  /// The first fault of put().
  [[nodiscard]] const result<void>& state() const noexcept { return fault_; }

  /// The length of the file.
  ///
  /// @pre all rows were put
  [[nodiscard]] result<index_t> finish() {
    if (!fault_) return fault_.fault();
    DEEPREC_EXPECTS(left_ == 0);
    std::byte end[detail::table_file_hash_bytes];
    std::memcpy(end, &file_hash_, sizeof(end));
    if (const auto done = file_.write(end, sizeof(end)); !done) return done.fault();
    if (const auto done = file_.commit(); !done) return done.fault();
    return static_cast<index_t>(file_bytes_);
  }

 private:
  static result<void> check_text(const std::string& text) {
    if (text.size() <= detail::table_file_longest_text) return {};
    return detail::invalid(detail::in_quotes(text.substr(0, 100)) + "...: a name or format of more than " +
                           std::to_string(detail::table_file_longest_text) + " bytes");
  }
  void next_table() {
    while (left_ == 0 && table_ < tables_.size()) (void)detail::packed_length(tables_[table_++], left_);
  }
  void write_block() {
    const std::uint64_t hash = detail::hash_of(buffer_.data(), static_cast<std::size_t>(filled_),
                                               detail::block_seed(header_hash_, block_++));
    std::memcpy(buffer_.data() + filled_, &hash, sizeof(hash));
    file_hash_ = detail::with_block(file_hash_, hash);
    fault_ = file_.write(buffer_.data(), static_cast<std::size_t>(filled_) + sizeof(hash));
    filled_ = 0;
  }

  std::span<const const_named_table> tables_;
  std::size_t table_ = 0;  // the next one
  std::uint64_t left_ = 0, filled_ = 0, block_ = 0, block_bytes_ = 0, file_bytes_ = 0;
  std::uint64_t header_hash_ = 0, file_hash_ = 0;
  detail::block_buffer buffer_;
  detail::replacement_file file_;
  result<void> fault_;
};

}}  // namespace deeprec::DEEPREC_ABI
