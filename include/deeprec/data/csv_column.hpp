// One column of a table in text: what it is for, and how its text becomes numbers.
//
//   csv_column::label("click")                     0 or 1; a number, at_least(x), or one of some words
//   csv_column::dense("price", csv_scale::log)     a dense value
//   csv_column::token("city", 1 << 20)             a row of a table, by hash; or of a vocabulary
//   csv_column::tokens("tags", '|', 1 << 20)       any number of them
//   csv_column::other("user", csv_use::group)      a weight, a group, a name
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// What a column is for. weight: of the row in a loss, in [0, 2^20]; group: a row's query or user, the 64-bit
/// hash of the text; name: text that goes with the row to its prediction.
enum class csv_use : std::uint8_t { ignored, label, dense, token, weight, group, name };

/// Which texts of a label are 1 and 0. binary: the numbers 1 and 0; number: the number itself; at_least: a
/// number of at least the threshold is 1; one_of: the words `positive` are 1, the words `negative` 0, or
/// where there are none all others.
enum class csv_label : std::uint8_t { binary, number, at_least, one_of };

/// What a dense value becomes. log: log(1 + x), of a negative one -log(1 - x); standard: (x - mean) /
/// deviation; quantile: the share of the training rows below it, by linear interpolation between `quantiles`.
enum class csv_scale : std::uint8_t { none, log, standard, quantile };

/// Words with numbers: 0 is that of a missing value, 1 of any other text, 2 the first word's.
///
/// @threads concurrent readers are safe
class csv_vocabulary {
 public:
  static constexpr index_t most = index_t{1} << 24;

  /// @cost    O(bytes of the words); allocates them and 8 to 16 bytes a word
  /// @threads reentrant
  /// @error   unsupported (a word is listed twice, or there are more than 2^24), out_of_memory
  [[nodiscard]] static result<std::shared_ptr<const csv_vocabulary>> of(std::span<const std::string> words) {
    if (static_cast<index_t>(words.size()) > most) {
      return status(errc::unsupported, "csv_vocabulary: words must be at most 2^24. Fix: hash them to rows",
                    {.is = static_cast<index_t>(words.size()), .at_most = most});
    }
    return detail::or_out_of_memory([&]() -> result<std::shared_ptr<const csv_vocabulary>> {
      auto made = std::make_shared<csv_vocabulary>();
      made->slots_.assign(std::bit_ceil(2 * words.size() + 1), 0);
      made->ends_.push_back(0);
      for (std::size_t w = 0; w < words.size(); ++w) {
        std::uint32_t& slot = made->slots_[made->slot_of(words[w])];
        if (slot != 0) {
          return status(errc::unsupported, "csv_vocabulary: a word is listed twice. Fix: list it once",
                        {.item = static_cast<index_t>(w)});
        }
        made->text_ += words[w];
        made->ends_.push_back(made->text_.size());
        slot = static_cast<std::uint32_t>(w) + 1;
      }
      return std::shared_ptr<const csv_vocabulary>(std::move(made));
    });
  }

  /// Numbers of a table: the words and two.
  [[nodiscard]] index_t rows() const noexcept { return static_cast<index_t>(ends_.size()) + 1; }
  /// @cost    O(size of the text)
  /// @threads reentrant
  /// @error   none
  [[nodiscard]] std::int64_t number_of(std::string_view text) const noexcept {
    const std::uint32_t slot = slots_[slot_of(text)];
    return slot == 0 ? 1 : static_cast<std::int64_t>(slot) + 1;
  }

 private:
  /// The slot of a word, or the free one where it would be.
  [[nodiscard]] std::size_t slot_of(std::string_view text) const noexcept {
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t at = hash_bytes(text) & mask;; at = (at + 1) & mask) {
      const std::uint32_t slot = slots_[at];
      if (slot == 0 || word(slot - 1) == text) return at;
    }
  }
  [[nodiscard]] std::string_view word(std::uint32_t w) const noexcept {
    return std::string_view(text_).substr(ends_[w], ends_[w + 1] - ends_[w]);
  }

  std::string text_;
  std::vector<std::size_t> ends_;
  std::vector<std::uint32_t> slots_;  // 1 + the word, or 0
};

struct csv_column {
  static constexpr float most_weight = 0x1p20F;  ///< as metrics take them

  std::string name{};  ///< of a file with a header; else for the reader of the code
  csv_use use = csv_use::ignored;
  index_t position = -1;  ///< of a file without a header, from 0; -1: the place in csv_format::columns

  csv_label rule = csv_label::binary;
  float threshold = 0;                              ///< of at_least
  std::vector<std::string> positive{}, negative{};  ///< of one_of

  csv_scale scale = csv_scale::none;
  float mean = 0, deviation = 1;
  std::vector<float> quantiles{};  ///< of the training rows, ascending: 0, 1/n ... 1
  /// The value of a missing field, as it is. None: 0, but a weight is then a fault.
  std::optional<float> missing{};

  index_t rows = 0;                                    ///< of a token's table; 0: the id is the 64-bit hash
  std::shared_ptr<const csv_vocabulary> vocabulary{};  ///< in place of a hash
  char separator = '\0';                               ///< of several tokens in a field; NUL: a field is one

  [[nodiscard]] static csv_column label(std::string name, csv_label rule = csv_label::binary,
                                        float threshold = 0) {
    csv_column made{.name = std::move(name), .use = csv_use::label};
    made.rule = rule;
    made.threshold = threshold;
    return made;
  }
  [[nodiscard]] static csv_column dense(std::string name, csv_scale scale = csv_scale::none) {
    csv_column made{.name = std::move(name), .use = csv_use::dense};
    made.scale = scale;
    return made;
  }
  [[nodiscard]] static csv_column token(std::string name, index_t rows = 0) {
    csv_column made{.name = std::move(name), .use = csv_use::token};
    made.rows = rows;
    return made;
  }
  [[nodiscard]] static csv_column tokens(std::string name, char separator, index_t rows = 0) {
    csv_column made = token(std::move(name), rows);
    made.separator = separator;
    return made;
  }
  [[nodiscard]] static csv_column other(std::string name, csv_use use) {
    return {.name = std::move(name), .use = use};
  }

  /// The rows of a token's table; 0: ids are 64-bit hashes.
  [[nodiscard]] index_t table_rows() const noexcept {
    return vocabulary != nullptr ? vocabulary->rows() : rows;
  }
  /// The dense value of a number.
  [[nodiscard]] float scaled(float x) const noexcept {
    switch (scale) {
      case csv_scale::none:
        return x;
      case csv_scale::log:
        return std::copysign(std::log1p(std::fabs(x)), x);
      case csv_scale::standard:
        return (x - mean) / deviation;
      case csv_scale::quantile:
        break;
    }
    if (!(x > quantiles.front())) return 0;
    if (x >= quantiles.back()) return 1;
    const auto above = std::upper_bound(quantiles.begin(), quantiles.end(), x);
    const float low = above[-1], part = (x - low) / (*above - low);
    return (static_cast<float>(above - quantiles.begin() - 1) + part) /
           static_cast<float>(quantiles.size() - 1);
  }

  /// Fails (unsupported) for the first invalid option.
  ///
  /// @cost    O(quantiles + words)
  /// @threads reentrant
  /// @error   none
  [[nodiscard]] status check() const noexcept {
    if (use == csv_use::label && rule == csv_label::one_of) {
      if (positive.empty())
        return {errc::unsupported, "csv_format: a label of one_of has no words. Fix: set positive"};
      for (const std::string& word : positive) {
        if (std::find(negative.begin(), negative.end(), word) != negative.end())
          return {errc::unsupported, "csv_format: a word of a label is both positive and negative"};
      }
    }
    if (use == csv_use::dense && scale == csv_scale::standard && !(deviation > 0 && std::isfinite(mean)))
      return {errc::unsupported, "csv_format: deviation must be above 0, and mean a number"};
    if (use == csv_use::dense && scale == csv_scale::quantile) {
      const bool sorted = quantiles.size() > 1 && std::is_sorted(quantiles.begin(), quantiles.end());
      if (!sorted || !(quantiles.back() - quantiles.front() < INFINITY))
        return {errc::unsupported, "csv_format: quantiles must be two numbers or more, in ascending order"};
    }
    if (use == csv_use::weight && missing && !(*missing >= 0 && *missing <= most_weight))
      return {errc::unsupported, "csv_format: the weight of a missing one must be in [0, 2^20]"};
    if (use == csv_use::token && rows < 0)
      return {errc::unsupported, "csv_format: rows of a table are negative. Fix: its size, or 0 for hashes"};
    if (use == csv_use::token && vocabulary != nullptr && rows > 0)
      return {errc::unsupported, "csv_format: rows must be 0 beside a vocabulary, which has its own"};
    return {};
  }
};

}}  // namespace deeprec::DEEPREC_ABI
