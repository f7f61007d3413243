// Baidu's format of feature signs: 64-bit keys, each with the number of its slot (the file's word for a
// feature).
//
//   0:1 4351255118977467729:3 16543128959394097760:29 10003478084564939135:29
//   │   └───────────────────┘ └──────────────────────┬──────────────────────┘
//   label (it is slot 1)   slot 3: one key        slot 29: two keys
//
// Slots come in any order and any number of times; a slot that the format doesn't list is ignored and
// counted, and one that a line lacks is an empty bag. Fields are separated by spaces or tabs. Files of
// slot:feasign are read with the option pairs. A line in the other order is malformed where that shows: none
// of its slots is listed, and each of its feasigns, two or more, is.
// Not here: the padding key 0 that PaddleRec puts into empty slots.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/data/detail/fields.hpp>
#include <deeprec/data/detail/numbers.hpp>
#include <deeprec/data/sparse_batch.hpp>
#include <deeprec/data/text_format.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The format of "feasign:slot" and "slot:feasign" files.
///
/// @numerics hashed: hash_bucket(mix64(key), rows), or mix64(key) with rows = 0, or bucket(decimal digits of
///           the key without leading zeros, feature of the batch, rows); as_is: the key's 64 bits
/// @threads  reentrant
/// @example  read_files(pool, feasign_format(feasign_format::slots(2, 300)), {"part-000"})
class feasign_format {
 public:
  /// The `count` slot numbers first, first + 1 ...
  ///
  /// @cost    O(count)
  /// @threads reentrant
  /// @error   none (bad_alloc where exceptions are on)
  [[nodiscard]] static std::vector<index_t> slots(index_t first, index_t count) {
    std::vector<index_t> numbers(static_cast<std::size_t>(count));
    for (index_t i = 0; i < count; ++i) numbers[static_cast<std::size_t>(i)] = first + i;
    return numbers;
  }

  /// @param slot_numbers the slots to keep; feature s of a batch is the s-th of them
  explicit feasign_format(std::vector<index_t> slot_numbers) : numbers_(std::move(slot_numbers)) {
    for (std::size_t s = 0; s < numbers_.size(); ++s) {
      const index_t number = numbers_[s];
      if (number < 0 || number >= most_) {
        wrong_ = {errc::unsupported,
                  "feasign_format: a slot number is negative or above 2^20. Fix: renumber the slots"};
        return;
      }
      if (static_cast<std::size_t>(number) >= slot_of_.size()) {
        slot_of_.resize(static_cast<std::size_t>(number) + 1, -1);
      }
      if (slot_of_[static_cast<std::size_t>(number)] >= 0) {
        wrong_ = {errc::unsupported, "feasign_format: a slot is listed twice. Fix: list it once"};
      }
      slot_of_[static_cast<std::size_t>(number)] = static_cast<std::int32_t>(s);
    }
  }

  /// What stands before the colon.
  enum class pair_order : std::uint8_t { feasign_slot, slot_feasign };

  pair_order pairs = pair_order::feasign_slot;
  token_use keys = token_use::as_is;
  index_t rows = 0;  ///< of every table; 0 = keep 64 bits (a key above 2^63 reads as negative)
  bucket_function bucket = nullptr;  ///< computes the row of a key, such as farmhash_bucket; null: the hash
  index_t label_slot = 1;            ///< the slot whose only key is the label; -1 = no such slot
  index_t label_fields = 0;          ///< bare numbers before the first feasign:slot; the first is the label

  struct layout {
    bool has_header = false;
  };

  /// Fails (unsupported) for the first invalid option.
  [[nodiscard]] status check() const noexcept {
    if (rows < 0)
      return {errc::unsupported,
              "feasign_format: rows is negative. Fix: 0 for 64-bit keys, or the table's size"};
    if (bucket != nullptr && keys == token_use::as_is)
      return {errc::unsupported, "feasign_format: keys must be hashed where bucket is set (are as_is)"};
    if (bucket != nullptr && rows == 0)
      return {errc::unsupported, "feasign_format: rows must be above 0 where bucket is set (is 0)"};
    return wrong_;
  }
  [[nodiscard]] batch_shape shape() const noexcept {
    return {.dense_columns = 0,
            .features = static_cast<index_t>(numbers_.size()),
            .bags = bag_size::any,
            .weights = id_weights::absent};
  }
  /// There are no headers.
  [[nodiscard]] static layout detect(std::string_view) noexcept { return {}; }

  /// Appends the rows of whole lines to the batch.
  ///
  /// @post    rows before a line that ended the parsing are in the batch; a bad line adds nothing
  /// @cost    one pass; allocates when the batch must grow
  /// @threads reentrant; needs exclusive access to the batch and the log
  /// @error   parse_error (the log has the location), out_of_memory
  DEEPREC_PER_UNIT status parse(const layout&, std::string_view text, sparse_batch& batch,
                                line_log& log) const {
    const bool slot_first = pairs == pair_order::slot_feasign;
    const auto parse_row = [&](std::string_view line, float& label) -> status {
      detail::blank_fields fields(line);
      std::string_view field = fields.next();
      if (field.empty()) return detail::no_row;
      for (index_t i = 0; i < label_fields; ++i, field = fields.next()) {
        float number = 0;
        if (field.empty()) return detail::bad_field(line, line.substr(line.size()), "a label is missing");
        if (const char* why = detail::parse_float(field, number)) {
          return detail::bad_field(line, field, why);
        }
        if (i == 0) label = number;
      }
      bool labelled = label_slot < 0 || label_fields > 0;
      const std::string_view first = field;
      index_t kept = 0, ignored = 0,
              swapped = 0;  // fields; of the ignored ones those that may be slot:feasign
      for (; !field.empty(); field = fields.next()) {
        const std::size_t colon = field.find(':');
        if (colon == std::string_view::npos) {
          return detail::bad_field(line, field, slot_first ? "not slot:feasign" : "not feasign:slot");
        }
        std::uint64_t key = 0;
        std::uint64_t number = 0;
        const std::string_view before = field.substr(0, colon), behind = field.substr(colon + 1);
        const std::string_view key_text = slot_first ? behind : before;
        const std::string_view slot_text = slot_first ? before : behind;
        if (const char* why = detail::parse_unsigned(key_text, key)) {
          return detail::bad_field(line, key_text, why);
        }
        if (const char* why = detail::parse_unsigned(slot_text, number)) {
          return detail::bad_field(line, slot_text, why);
        }
        if (!labelled && number == static_cast<std::uint64_t>(label_slot)) {
          if (key > 1) return detail::bad_field(line, field, "the label is neither 0 nor 1");
          label = static_cast<float>(key);
          labelled = true;
          continue;
        }
        const std::int32_t slot = number < slot_of_.size() ? slot_of_[number] : -1;
        if (slot < 0) {
          ++ignored;
          const bool is_slot = key < slot_of_.size() && slot_of_[key] >= 0;
          swapped += is_slot || (label_slot >= 0 && key == static_cast<std::uint64_t>(label_slot)) ? 1 : 0;
          continue;
        }
        ++kept;
        if (bucket != nullptr) {
          char digits[20];  // of 2^64 - 1
          const char* const end = std::to_chars(digits, digits + 20, key).ptr;
          std::int64_t row = 0;
          if (const char* why = detail::bucket_reason(
                  bucket, {digits, static_cast<std::size_t>(end - digits)}, slot, rows, row)) {
            return detail::bad_field(line, field, why);
          }
          key = static_cast<std::uint64_t>(row);
        } else if (keys == token_use::hashed) {
          key = mix64(key);
          if (rows > 0) key = static_cast<std::uint64_t>(hash_bucket(key, rows));
        } else if (rows > 0 && key >= static_cast<std::uint64_t>(rows)) {
          return detail::bad_field(line, field, "the id is beyond its table");
        }
        if (!batch.push_id(slot, static_cast<std::int64_t>(key))) return detail::no_room_for_rows;
      }
      if (kept == 0 && swapped > 1 && swapped == ignored) {
        return detail::bad_field(
            line, first,
            slot_first ? "feasign:slot: no slot is listed, each feasign is. Fix: pairs = feasign_slot"
                       : "slot:feasign: no slot is listed, each feasign is. Fix: pairs = slot_feasign");
      }
      if (!labelled) {
        return detail::bad_field(line, line.substr(line.size()), "the line has no label");
      }
      log.count_ignored(ignored);
      return {};
    };
    return detail::for_each_row(text, batch, log, parse_row);
  }

 private:
  static constexpr index_t most_ = index_t{1} << 20;
  std::vector<index_t> numbers_;
  std::vector<std::int32_t> slot_of_;  // slot number -> feature of the batch, or -1
  status wrong_;
};

static_assert(TextFormat<feasign_format>);

}}  // namespace deeprec::DEEPREC_ABI
