#pragma once

// Helpers of the tests in this folder: batches as plain values, files that vanish, random text, and
// the real data files.

#include <doctest/doctest.h>

#include "support/seed.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <dirent.h>
#include <sys/mman.h>
#include <unistd.h>

#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/sparse_batch.hpp>
#include <deeprec/data/text_format.hpp>

namespace deeprec_test {

using deeprec::index_t;

/// What a batch says, as a value. Floats are kept as bits.
struct plain_row {
  std::uint32_t label = 0;
  std::vector<std::uint32_t> dense;
  std::vector<std::vector<std::int64_t>> ids;       // [slot][k]
  std::vector<std::vector<std::uint32_t>> weights;  // [slot][k], or empty

  friend bool operator==(const plain_row&, const plain_row&) = default;
};
using plain_rows = std::vector<plain_row>;

inline std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

inline plain_rows to_plain(const deeprec::sparse_batch& batch) {
  plain_rows rows(static_cast<std::size_t>(batch.rows()));
  const auto dense = batch.dense();
  for (index_t r = 0; r < batch.rows(); ++r) {
    plain_row& row = rows[static_cast<std::size_t>(r)];
    row.label = bits(batch.labels()[static_cast<std::size_t>(r)]);
    for (index_t c = 0; c < dense.extent(1); ++c) row.dense.push_back(bits(dense(r, c)));
    for (index_t s = 0; s < batch.feature_count(); ++s) {
      const auto bags = batch.feature(s);
      auto& ids = row.ids.emplace_back();
      auto& weights = row.weights.emplace_back();
      for (std::int64_t k = bags.offsets()[r]; k < bags.offsets()[r + 1]; ++k) {
        ids.push_back(bags.ids()[k]);
        if (bags.weights() != nullptr) weights.push_back(bits(bags.weights()[k]));
      }
    }
  }
  return rows;
}

/// Each view of the batch is a valid view of its rows.
inline bool is_sound(const deeprec::sparse_batch& batch) {
  for (index_t s = 0; s < batch.feature_count(); ++s) {
    const auto bags = batch.feature(s);
    if (!bags.validate().ok() || bags.bags() != batch.rows()) return false;
    if (bags.end_position() != bags.id_count() || bags.first_position() != 0) return false;
  }
  return static_cast<index_t>(batch.labels().size()) == batch.rows();
}

/// A file with this content, removed at the end.
class temporary_file {
 public:
  explicit temporary_file(std::string_view content) {
    const char* folder = std::getenv("TMPDIR");
    path_ = std::string(folder != nullptr ? folder : "/tmp") + "/deeprec_data_XXXXXX";
    const int descriptor = ::mkstemp(path_.data());
    REQUIRE(descriptor >= 0);
    ::close(descriptor);
    write(content);
  }
  temporary_file(const temporary_file&) = delete;
  temporary_file& operator=(const temporary_file&) = delete;
  ~temporary_file() { std::remove(path_.c_str()); }

  void write(std::string_view content) const {
    std::ofstream out(path_, std::ios::binary | std::ios::trunc);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// A copy of the text that ends where its allocation ends, so that a sanitizer sees every overrun.
class tight_text {
 public:
  explicit tight_text(std::string_view text, std::size_t offset = 0)
      : bytes_(new char[text.size() + offset]), offset_(offset), size_(text.size()) {
    std::copy(text.begin(), text.end(), bytes_.get() + offset);
  }
  [[nodiscard]] std::string_view view() const { return {bytes_.get() + offset_, size_}; }

 private:
  std::unique_ptr<char[]> bytes_;
  std::size_t offset_;
  std::size_t size_;
};

/// Files that this process has open.
inline index_t open_descriptors() {
  index_t count = -1;  // opendir has one as well
  if (DIR* folder = ::opendir("/proc/self/fd")) {
    while (const dirent* entry = ::readdir(folder)) count += entry->d_name[0] != '.' ? 1 : 0;
    ::closedir(folder);
  }
  return count;
}

/// Text of which a reader with one chunk in flight may only look at what the next chunk is due to: the
/// chunk, the byte before it, and one line of the limit behind it (all in whole pages). Any other page
/// has no access: a reader that looks there dies.
class due_text {
 public:
  due_text(std::string_view text, index_t chunk_bytes, index_t longest_line)
      : page_(::sysconf(_SC_PAGESIZE)),
        size_(static_cast<index_t>(text.size())),
        chunk_bytes_(chunk_bytes),
        longest_line_(longest_line),
        base_(static_cast<char*>(
            ::mmap(nullptr, text.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    std::copy(text.begin(), text.end(), base_);
    allow(0, deeprec::detail::head_bytes(longest_line));
  }
  due_text(const due_text&) = delete;
  due_text& operator=(const due_text&) = delete;
  ~due_text() { ::munmap(base_, static_cast<std::size_t>(size_)); }

  [[nodiscard]] std::string_view view() const { return {base_, static_cast<std::size_t>(size_)}; }
  void next_chunk() const {
    const index_t begin = chunk_bytes_ * chunks_++;
    allow(begin - 1, begin + chunk_bytes_ + longest_line_ + 1);
  }
  [[nodiscard]] index_t chunks() const { return chunks_; }

 private:
  void allow(index_t from, index_t to) const {
    from = std::max<index_t>(from, 0) / page_ * page_;
    to = std::min((to + page_ - 1) / page_ * page_, (size_ + page_ - 1) / page_ * page_);
    REQUIRE(::mprotect(base_, static_cast<std::size_t>(size_), PROT_NONE) == 0);
    if (from >= to) return;
    REQUIRE(::mprotect(base_ + from, static_cast<std::size_t>(to - from), PROT_READ) == 0);
  }

  index_t page_;
  index_t size_;
  index_t chunk_bytes_;
  index_t longest_line_;
  char* base_;
  mutable index_t chunks_ = 0;
};

/// Runs a reader's chunks (one in flight: the only calls with n = 1), each once its text is due.
struct due_executor {
  const due_text* text;
  template <class Body>
  void parallel_for(index_t n, index_t, Body&& body) const {
    if (n == 1) text->next_chunk();
    body(0, n, 0);
  }
  [[nodiscard]] static constexpr int concurrency() noexcept { return 1; }
};

/// A bucket_function: all bytes of the token, its size and the feature decide.
inline index_t plain_bucket(std::string_view token, int feature, index_t rows) noexcept {
  std::uint64_t hash = token.size() + 131 * static_cast<std::uint64_t>(feature);
  for (const char c : token) hash = hash * 1099511628211U + static_cast<unsigned char>(c);
  return static_cast<index_t>(hash % static_cast<std::uint64_t>(rows));
}

/// The outcome of reading everything: rows in order, sizes of the batches, and the fault if any.
struct outcome {
  plain_rows rows;
  std::vector<index_t> sizes;
  std::string fault;
  index_t skipped = 0;
  std::string first_skipped;
  bool sound = true;

  friend bool operator==(const outcome&, const outcome&) = default;
};

template <class Reader>
outcome read_all(Reader&& reader, index_t max_rows) {
  outcome out;
  deeprec::sparse_batch batch;
  for (;;) {
    const deeprec::result<index_t> got = reader.next(batch, max_rows);
    if (!got) {
      out.fault = got.fault().message();
      out.sound = out.sound && batch.rows() == 0;
      break;
    }
    out.sound = out.sound && is_sound(batch) && batch.rows() == got.value();
    if (got.value() == 0) break;
    out.sizes.push_back(got.value());
    for (plain_row& row : to_plain(batch)) out.rows.push_back(std::move(row));
  }
  out.skipped = reader.skipped_lines();
  if (!reader.first_skipped().empty()) out.first_skipped = reader.first_skipped()[0].message();
  return out;
}

/// parse_text as an outcome: with malformed::fault the rows before a fault are not seen.
template <class Format>
outcome parse_all(const Format& format, std::string_view text,
                  deeprec::malformed policy = deeprec::malformed::fault) {
  outcome out;
  deeprec::sparse_batch batch;
  const auto done = deeprec::parse_text(format, text, batch, {.on_malformed = policy});
  out.sound = is_sound(batch);
  if (!done) {
    out.fault = done.fault().message();
    out.sound = out.sound && batch.rows() == 0;
    return out;
  }
  out.rows = to_plain(batch);
  out.skipped = done.value().skipped_lines;
  if (done.value().first_skipped) out.first_skipped = done.value().first_skipped->message();
  return out;
}

/// The whole of a real data file; empty, with a loud message, when the folder isn't there.
inline std::string real_file_path(const char* name) {
  const char* folder = std::getenv("DEEPREC_DATA_DIR");
  if (folder == nullptr) {
    MESSAGE("SKIPPED: DEEPREC_DATA_DIR is not set, so " << std::string(name) << " was not read");
    return {};
  }
  std::string path = std::string(folder) + "/" + name;
  if (!std::ifstream(path)) {
    MESSAGE("SKIPPED: " << path << " is not there");
    return {};
  }
  return path;
}

inline std::string content_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream all;
  all << in.rdbuf();
  return all.str();
}

/// Random choices that follow from the run's seed.
class dice {
 public:
  explicit dice(std::uint64_t stream) : engine_(seed() * 0x9e3779b97f4a7c15U + stream) {}
  std::uint64_t bits() { return engine_(); }
  /// In [0, n).
  index_t below(index_t n) { return static_cast<index_t>(engine_() % static_cast<std::uint64_t>(n)); }
  bool one_in(index_t n) { return below(n) == 0; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace deeprec_test
