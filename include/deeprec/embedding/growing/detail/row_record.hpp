// A row and its facts as bytes: what files hold of a key.
//
//   record   | key 8 | step 8 | frequency 4 | 0 4 | row | state of the optimizer |
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/embedding/growing/detail/row_store.hpp>
#include <deeprec/embedding/tables/row_format.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The facts at the front of a record.
struct record_head {
  std::uint64_t key = 0;
  std::uint64_t step = 0;  // of the last update
  std::uint32_t frequency = 0;
  std::uint32_t zero = 0;

  static record_head of(const std::byte* record) noexcept {
    record_head head;
    std::memcpy(&head, record, sizeof(head));
    return head;
  }
};
static_assert(sizeof(record_head) == 24);

/// Where the parts of a row are, in memory.
class row_record {
 public:
  template <RowFormat Format>
  explicit row_record(const Format& format)
      : row_bytes_(static_cast<std::size_t>(format.row_bytes())),
        state_bytes_(static_cast<std::size_t>(format.state_floats()) * sizeof(float)) {
    if (state_bytes_ == 0) return;
    std::vector<std::byte> row(static_cast<std::size_t>(format.stride_bytes()));  // only for addresses in it
    auto* const state = static_cast<std::byte*>(static_cast<void*>(format.state(row.data())));
    state_at_ = static_cast<std::size_t>(state - row.data());
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return sizeof(record_head) + row_bytes_ + state_bytes_; }

  /// @param first_step what the steps of facts are counted from
  void pack(const row_facts& facts, std::uint64_t first_step, const std::byte* row,
            std::byte* to) const noexcept {
    const record_head head{facts.key.load(std::memory_order_relaxed),
                           first_step + facts.step.load(std::memory_order_relaxed),
                           row_facts::frequency_of(facts.rest.load(std::memory_order_relaxed))};
    std::memcpy(to, &head, sizeof(head));
    std::memcpy(to + sizeof(head), row, row_bytes_);
    if (state_bytes_ > 0) std::memcpy(to + sizeof(head) + row_bytes_, row + state_at_, state_bytes_);
  }
  void unpack_row(const std::byte* record, std::byte* row) const noexcept {
    std::memcpy(row, record + sizeof(record_head), row_bytes_);
    if (state_bytes_ > 0)
      std::memcpy(row + state_at_, record + sizeof(record_head) + row_bytes_, state_bytes_);
  }

 private:
  std::size_t row_bytes_;
  std::size_t state_bytes_;
  std::size_t state_at_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
