// Reads a table file as streams of elements: records, keys. Twice: first to check everything, then to use it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/embedding/files/detail/table_file_blocks.hpp>
#include <deeprec/embedding/files/named_table.hpp>
#include <deeprec/support/whole_file.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// What is done with a table of a file: use(elements, n) for its rows, in order.
struct table_section {
  std::size_t element_bytes = 0;
  std::function<result<void>(const std::byte* elements, index_t n)> use;  // empty: passed over
};

/// A file of tables, of which each pass gives the rows to others.
///
/// @threads exclusive
/// @error   as load_tables
class table_file_reader {
 public:
  explicit table_file_reader(std::pmr::memory_resource* memory) : buffer_(memory), part_(memory) {}

  [[nodiscard]] result<void> open(const std::string& path) {
    if (auto done = file_.open(path); !done) return done;
    auto read = detail::read_header_of(file_);
    if (!read) return read.fault();
    header_ = std::move(read.value());
    if (!buffer_.reserve(
            detail::largest_block(static_cast<std::uint64_t>(header_.info.block_bytes), header_.info.tables)))
      return status(errc::out_of_memory, "memory for a block was refused");
    return {};
  }
  [[nodiscard]] const table_file_info& info() const noexcept { return header_.info; }
  /// The table of a name, or -1.
  [[nodiscard]] index_t find(std::string_view name) const noexcept {
    const auto& all = header_.info.tables;
    const auto at =
        std::find_if(all.begin(), all.end(), [&](const table_entry& t) { return t.name == name; });
    return at == all.end() ? -1 : static_cast<index_t>(at - all.begin());
  }

  /// One pass over the file: every checksum is compared.
  ///
  /// @param sections of each table of the file
  [[nodiscard]] result<void> read(std::span<const table_section> sections) {
    part_.clear();
    return detail::read_blocks(file_, header_, buffer_,
                               [&](std::size_t i, std::uint64_t, const std::byte* bytes, std::size_t count) {
                                 return sections[i].use ? give(sections[i], bytes, count) : result<void>();
                               });
  }

 private:
  // Elements may begin in one block and end in the next.
  result<void> give(const table_section& to, const std::byte* bytes, std::size_t count) {
    const std::size_t size = to.element_bytes;
    if (!part_.empty()) {
      const std::size_t missing = (std::min)(size - part_.size(), count);
      part_.insert(part_.end(), bytes, bytes + missing);
      bytes += missing;
      count -= missing;
      if (part_.size() < size) return {};
      if (auto done = to.use(part_.data(), 1); !done) return done;
      part_.clear();
    }
    const std::size_t whole = count / size;
    if (whole > 0) {
      if (auto done = to.use(bytes, static_cast<index_t>(whole)); !done) return done;
    }
    part_.assign(bytes + whole * size, bytes + count);
    return {};
  }

  detail::input_file file_;
  detail::read_header header_;
  detail::block_buffer buffer_;
  std::pmr::vector<std::byte> part_;
};

}}  // namespace deeprec::DEEPREC_ABI
