// A table of checkpoints, of any kind: what it writes of a cut, and what it takes from a file.
//
//   file   NAME, records      key, step, frequency, values and state of rows: all, or those that changed
//          NAME, erased       keys whose rows were erased, ascending; where a record of the key is in the
//                             file, it counts
//          NAME, candidates   keys that filters::counter counts, ascending, and their counts (full files)
//          NAME, filter       the state of another filter                                   (full files)
//          numbers            NAME, step · NAME, first step (-1: none yet) · NAME, rows · NAME, whole
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_options.hpp>
#include <deeprec/embedding/files/named_table.hpp>
#include <deeprec/embedding/files/table_file_reader.hpp>
#include <deeprec/embedding/files/table_file_writer.hpp>
#include <deeprec/support/file_faults.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

inline constexpr std::string_view checkpoint_chain = "checkpoint, chain";
inline constexpr std::string_view checkpoint_from = "checkpoint, from";
inline constexpr std::string_view checkpoint_to = "checkpoint, to";
inline constexpr std::string_view checkpoint_prefix = "checkpoint, ";

/// The numbers of a file that are not the caller's: those of the checkpoint, and then those of tables.
inline std::span<const named_number> own_numbers(const training_state& state) {
  const auto first = std::find_if(state.numbers.begin(), state.numbers.end(), [](const named_number& number) {
    return std::string_view(number.name).starts_with(checkpoint_prefix);
  });
  return {first, state.numbers.end()};
}
inline std::optional<index_t> own_number(const training_state& state, std::string_view name) {
  for (const named_number& number : own_numbers(state)) {
    const index_t* const whole = std::get_if<index_t>(&number.value);
    if (number.name == name && whole != nullptr) return *whole;
  }
  return std::nullopt;
}

/// A table and a file that it takes: checked in one pass, then applied in another.
class table_load {
 public:
  table_load() = default;
  table_load(const table_load&) = delete;
  table_load& operator=(const table_load&) = delete;
  virtual ~table_load() = default;

  /// What the passes do with the tables of the file.
  virtual void check(std::span<table_section> sections) = 0;
  virtual void apply(std::span<table_section> sections) = 0;
  /// After the second pass.
  virtual result<void> end() = 0;
};

class checkpoint_table {
 public:
  explicit checkpoint_table(std::string name) : name_(std::move(name)) {}
  checkpoint_table(const checkpoint_table&) = delete;
  checkpoint_table& operator=(const checkpoint_table&) = delete;
  virtual ~checkpoint_table() = default;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }

  // --- to write; of one cut at a time -------------------------------------------------------------------

  /// Excludes insertions, erasures and evictions. Null: none.
  virtual std::mutex* mutex() noexcept = 0;
  /// Copies what belongs to the cut and is small. Under the mutex; may throw, and then the cut has not begun.
  virtual void copy(bool full) = 0;
  /// Begins the cut. Under the mutex.
  virtual void begin(bool full) noexcept = 0;
  /// Adds its tables and numbers of the cut.
  virtual void describe(std::vector<const_named_table>& tables, std::vector<named_number>& numbers) = 0;
  /// Puts the rows of those tables.
  virtual result<void> write(table_file_writer& file, const std::stop_token* stop) = 0;
  virtual void end(bool was_written) noexcept = 0;

  // --- to read ------------------------------------------------------------------------------------------

  /// What the table takes from a file; a fault where it does not fit.
  virtual result<std::unique_ptr<table_load>> load(const table_file_reader& file,
                                                   const apply_options& options) = 0;
  /// The table is as the last file has it: nothing has changed.
  virtual void forget_changes() noexcept = 0;

 private:
  std::string name_;
};

/// Dense values: copied at the cut, and whole in every file.
class dense_checkpoint final : public checkpoint_table {
 public:
  dense_checkpoint(named_table table, std::pmr::memory_resource* memory)
      : checkpoint_table(table.name), table_(std::move(table)), copied_(memory) {}

  std::mutex* mutex() noexcept override { return nullptr; }
  void copy(bool) override {
    std::uint64_t length = 0;
    (void)packed_length(table_, length);
    copied_.resize(static_cast<std::size_t>(length));
    std::byte* to = copied_.data();
    packed(table_).each_piece(0, length, [&](const std::byte* from, std::size_t n) {
      std::memcpy(to, from, n);
      to += n;
    });
  }
  void begin(bool) noexcept override {}
  void describe(std::vector<const_named_table>& tables, std::vector<named_number>&) override {
    tables.emplace_back(table_);
  }
  result<void> write(table_file_writer& file, const std::stop_token*) override {
    file.put(copied_.data(), copied_.size());
    return file.state();
  }
  void end(bool) noexcept override { copied_.clear(); }

  result<std::unique_ptr<table_load>> load(const table_file_reader& file, const apply_options&) override {
    const index_t at = file.find(name());
    if (at < 0) return misfit("table " + in_quotes(name()) + " is not in the file");
    if (auto done = check_shape(file.info().tables[static_cast<std::size_t>(at)], table_); !done)
      return done.fault();
    return std::unique_ptr<table_load>(std::make_unique<dense_load>(table_, static_cast<std::size_t>(at)));
  }
  void forget_changes() noexcept override {}

 private:
  class dense_load final : public table_load {
   public:
    dense_load(const named_table& to, std::size_t at) : to_(&to), at_(at) {}
    void check(std::span<table_section>) override {}
    void apply(std::span<table_section> sections) override {
      sections[at_] = {1, [this](const std::byte* bytes, index_t n) {
                         unpack(*to_, from_, bytes, static_cast<std::size_t>(n));
                         from_ += static_cast<std::uint64_t>(n);
                         return result<void>();
                       }};
    }
    result<void> end() override { return {}; }

   private:
    const named_table* to_;
    std::size_t at_;
    std::uint64_t from_ = 0;
  };

  named_table table_;
  std::pmr::vector<std::byte> copied_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
