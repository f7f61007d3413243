// libFuzzer: two chains of checkpoints, whose files are changed, cut off, extended, given other names and
// removed; with checksums that are made right again, or not. A call refuses them with a fault, or leaves a
// table whose keys and rows belong together; without right checksums it is what some file was written with.
//
// The first four bytes choose filter, call and whose checksums are right; then six for each change: what, in
// which file and table, where (2), with what (2).

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <deeprec/embedding/checkpoints/apply_delta.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_folder.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_reader.hpp>
#include <deeprec/embedding/files/detail/table_file_blocks.hpp>
#include <deeprec/embedding/growing/admission.hpp>

#include "checkpoints/checkpoint_support.hpp"

namespace {

using namespace deeprec;
using deeprec_test::key_type;
using deeprec_test::keyed_content;
using deeprec_test::keyed_content_of;
using deeprec_test::keys_from;
using table_type = growing_table<f32_rows>;

const inline_executor here;

void require(bool holds) {
  if (!holds) std::abort();
}

// --- files that are right --------------------------------------------------------------------------------

enum class by { nothing, counter, parity };

/// Admits keys by what came before, with a few bytes of memory.
class parity_filter final : public admission_filter {
 public:
  void admit(std::span<const std::uint64_t> keys, std::span<const std::uint32_t>, std::uint64_t,
             std::span<unsigned char> admitted) noexcept override {
    for (std::size_t k = 0; k < keys.size(); ++k) {
      std::byte& came = came_[keys[k] % came_.size()];
      came ^= std::byte{1};
      admitted[k] = came == std::byte{1} ? 1 : 0;
    }
  }
  [[nodiscard]] std::span<std::byte> state() noexcept override { return came_; }

 private:
  std::array<std::byte, 50> came_{};
};

std::unique_ptr<table_type> table_of(by filter) {
  auto made = std::make_unique<table_type>(3, state_of<adagrad>, deeprec_test::first_values,
                                           growing_options{.most_rows = 60, .granule_bytes = 4096});
  if (filter == by::counter) made->admit_by(filters::counter{2}).or_throw();
  if (filter == by::parity) made->admit_by(std::make_unique<parity_filter>()).or_throw();
  return made;
}

/// full-1, delta-2, delta-3, full-4 and delta-5, and what each of them stands for.
struct chains {
  explicit chains(by filter) {
    const deeprec_test::temporary_folder folder;
    const auto table = table_of(filter);
    std::vector<float> values{1, 2};
    checkpoint_folder saves(folder.path(), {.kept_chains = 9, .block_bytes = 100});
    saves.add("t", *table).or_throw();
    saves.add(name_table("w", as_table(matrix_view<float>(values.data(), 2, 1)))).or_throw();
    for (std::uint64_t cut = 1; cut <= 5; ++cut) {
      table->begin_step(10 * cut);
      for (int time = 0; time < 2; ++time) deeprec_test::insert(*table, keys_from(2 * cut, 4)).or_throw();
      deeprec_test::insert(*table, keys_from(50 + cut, 2)).or_throw();
      if (cut % 2 == 0) table->erase(here, keys_from(cut, 2)).or_throw();
      const training_state state{.step = cut, .numbers = {{"rate", 0.5}}};
      auto taken = cut % 3 == 1 ? saves.take_full(state) : saves.take_delta(state);
      taken.or_throw();
      taken.value().write().or_throw();
      files.push_back({cut % 3 == 1, cut, deeprec_test::bytes_of(taken.value().path())});
      cuts.push_back(keyed_content_of(*table));
      chain_of.push_back(saves.position().chain);
    }
  }
  struct file {
    bool is_full;
    std::uint64_t number;
    std::string bytes;
  };
  std::vector<file> files;
  std::vector<keyed_content> cuts;
  std::vector<std::uint64_t> chain_of;
};

const chains& chains_of(by filter) {
  static const std::array<chains, 3> all{chains(by::nothing), chains(by::counter), chains(by::parity)};
  return all[static_cast<std::size_t>(filter)];
}

// --- and wrong -------------------------------------------------------------------------------------------

template <class T>
void put(std::string& bytes, std::size_t at, T value) {
  if (at <= bytes.size() && bytes.size() - at >= sizeof(value))
    std::memcpy(bytes.data() + at, &value, sizeof(value));
}
template <class T>
T get(const std::string& bytes, std::size_t at) {
  T value{};
  if (at <= bytes.size() && bytes.size() - at >= sizeof(value))
    std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}
std::uint64_t hash_of(std::string_view bytes, std::uint64_t seed = 0) {
  return detail::hash_of(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), seed);
}

/// A table of a file: where its number of rows is in the header, and its rows among those of all tables.
struct section {
  std::size_t rows_at = 0, begin = 0, length = 0, row_bytes = 0, blocks_bytes = 0;
};

/// A file without its checksums: the header, and the packed rows of all tables.
struct file_parts {
  explicit file_parts(const std::string& file)
      : header(file.substr(0, static_cast<std::size_t>(get<std::uint64_t>(file, 16)) - 8)) {
    std::size_t at = header.size() + 8;
    for (const section& one : sections()) {
      for (std::size_t from = 0; from < one.length; from += block_bytes()) {
        const std::size_t count = (std::min)(one.length - from, block_bytes());
        rows += file.substr(at, count);
        at += count + 8;
      }
    }
  }
  [[nodiscard]] std::size_t block_bytes() const {
    return static_cast<std::size_t>(get<std::uint64_t>(header, 32));
  }
  /// Empty where the header can't be read.
  [[nodiscard]] std::vector<section> sections() const {
    if (header.size() < detail::table_file_start_bytes || block_bytes() == 0) return {};
    detail::byte_reader fields(
        reinterpret_cast<const std::byte*>(header.data()) + detail::table_file_start_bytes,
        header.size() - detail::table_file_start_bytes);
    std::string text;
    std::uint64_t value = 0;
    std::uint32_t kind = 0;
    for (auto n = get<std::uint32_t>(header, 52); n > 0; --n)
      if (!fields.get_text(text) || !fields.get(kind) || !fields.get(value)) return {};
    std::vector<section> all;
    std::size_t begin = 0;
    for (auto n = get<std::uint32_t>(header, 48); n > 0; --n) {
      table_entry t;
      const bool has_owner = get<std::uint32_t>(header, 12) != 1;
      if (!fields.get_text(t.name) || !fields.get_text(t.format) ||
          (has_owner && !fields.get_text(t.state_owner)))
        return {};
      section one{.rows_at = header.size() - fields.left(), .begin = begin};
      std::uint64_t length = 0, blocks = 0;
      if (!fields.get(t.rows) || !fields.get(t.width) || !fields.get(t.row_bytes) ||
          !fields.get(t.stride_bytes) || !fields.get(t.state_floats) || !detail::packed_length(t, length) ||
          !detail::blocks_length(length, block_bytes(), blocks) || blocks > 100'000)
        return {};
      one.length = static_cast<std::size_t>(length);
      one.row_bytes = static_cast<std::size_t>(t.row_bytes + 4 * t.state_floats);
      one.blocks_bytes = static_cast<std::size_t>(blocks);
      begin += one.length;
      all.push_back(one);
    }
    return all;
  }
  /// With lengths and checksums that are right.
  [[nodiscard]] std::string file() const {
    std::string made = header, all = rows;
    const std::vector<section> tables = sections();
    std::size_t length = header.size() + 16, rows_length = 0;
    for (const section& one : tables) {
      length += one.blocks_bytes;
      rows_length += one.length;
    }
    all.resize(rows_length);
    put(made, 16, std::uint64_t{header.size() + 8});
    put(made, 24, std::uint64_t{length});
    put(made, 56, hash_of(std::string_view(made).substr(0, 56)));
    const std::uint64_t header_hash = hash_of(made);
    std::uint64_t file_hash = header_hash, number = 0;
    const auto append = [&](std::uint64_t hash) {
      made.append(reinterpret_cast<const char*>(&hash), sizeof(hash));
    };
    append(header_hash);
    for (const section& one : tables) {
      for (std::size_t from = 0; from < one.length; from += block_bytes()) {
        const std::string_view block =
            std::string_view(all).substr(one.begin + from, (std::min)(one.length - from, block_bytes()));
        made += block;
        const std::uint64_t hash = hash_of(block, detail::block_seed(header_hash, number++));
        append(hash);
        file_hash = detail::with_block(file_hash, hash);
      }
    }
    append(file_hash);
    return made;
  }

  std::string header, rows;
};

/// Numbers at the ends of types, and small ones.
std::uint64_t number_of(std::uint16_t bytes) {
  constexpr std::uint64_t special[] = {~0ULL,      ~0ULL - 1,  1ULL << 63,       (1ULL << 63) - 1,
                                       1ULL << 62, 1ULL << 40, 1ULL << 33,       1ULL << 32,
                                       1ULL << 31, 1ULL << 24, (1ULL << 32) - 1, 1ULL << 16};
  return bytes < std::size(special) ? special[bytes] : bytes - std::size(special);
}

/// What six bytes change.
struct edit {
  explicit edit(const std::uint8_t* bytes)
      : kind(bytes[0]),
        which(bytes[1]),
        where(static_cast<std::uint16_t>(bytes[2] | bytes[3] << 8)),
        with(static_cast<std::uint16_t>(bytes[4] | bytes[5] << 8)) {}

  void change(std::string& bytes) const {
    const std::size_t at = where % (bytes.size() + 1);
    switch (kind % 5) {
      case 0:
        return put(bytes, at, static_cast<std::uint8_t>(with));
      case 1:
        return put(bytes, at, static_cast<std::uint32_t>(number_of(with)));
      case 2:
        return put(bytes, at, number_of(with));
      case 3:
        bytes.erase(at, with % 128);
        return;
      default:
        bytes.insert(at, with % 128, '\1');
        return;
    }
  }
  /// A row is replaced by another, doubled, or taken away.
  void change_row(file_parts& file) const {
    const std::vector<section> all = file.sections();
    if (all.empty()) return;
    const section& one = all[which / 8 % all.size()];
    if (one.length == 0 || one.begin + one.length > file.rows.size()) return;
    const std::size_t count = one.length / one.row_bytes;
    const std::size_t from = one.begin + where % count * one.row_bytes;
    const std::size_t to = one.begin + with % count * one.row_bytes;
    const std::string row = file.rows.substr(from, one.row_bytes);
    if (kind % 3 == 0) {
      file.rows.replace(to, row.size(), row);
    } else if (kind % 3 == 1) {
      file.rows.insert(to, row);
      put(file.header, one.rows_at, std::uint64_t{count + 1});
    } else {
      file.rows.erase(to, row.size());
      put(file.header, one.rows_at, std::uint64_t{count - 1});
    }
  }

  std::uint8_t kind, which;
  std::uint16_t where, with;
};

using file_list = std::vector<chains::file>;

/// The files after all changes; sealed[i % 8]: with right checksums.
file_list changed(file_list files, const std::vector<edit>& edits, unsigned sealed) {
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto each_edit = [&](const auto& use) {
      for (const edit& one : edits)
        if (one.kind < 224 && one.which % files.size() == i) use(one);
    };
    if ((sealed >> i % 8 & 1) == 0) {
      each_edit([&](const edit& one) { one.change(files[i].bytes); });
      continue;
    }
    file_parts parts(files[i].bytes);
    each_edit([&](const edit& one) {
      if (one.kind < 64) return one.change(parts.header);
      if (one.kind < 128) return one.change(parts.rows);
      one.change_row(parts);
    });
    files[i].bytes = parts.file();
  }
  for (const edit& one : edits) {
    if (one.kind < 224 || files.empty()) continue;
    const std::size_t i = one.which % files.size();
    if (one.kind % 3 == 0) {
      files.erase(files.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      if (one.kind % 3 == 1) files.push_back(files[i]);
      chains::file& renamed = one.kind % 3 == 1 ? files.back() : files[i];
      renamed.number = one.where < 32768 ? 1 + one.where % 8 : number_of(one.with) % (std::uint64_t{1} << 62);
      renamed.is_full = one.with % 2 == 0;
    }
  }
  return files;
}

/// A folder that the files are written to. One for all inputs: making folders takes longest.
class file_place {
 public:
  [[nodiscard]] const std::string& path() const { return path_; }
  void lay(const file_list& files) {
    for (const std::string& name : folder_.names()) std::filesystem::remove(path_ + '/' + name);
    for (const chains::file& one : files) deeprec_test::write_bytes(path_of(one), one.bytes);
  }
  [[nodiscard]] std::string path_of(const chains::file& one) const {
    return path_ + '/' + detail::folder_file{one.is_full, one.number}.name();
  }

 private:
  deeprec_test::temporary_folder folder_;
  std::string path_ = folder_.path();
};

// --- what is read ----------------------------------------------------------------------------------------

/// Keys and rows of a table belong together, and it can be used.
void check(table_type& table) {
  auto& state = table.state();
  index_t rows = 0, candidates = 0, keys = 0;
  table.rows().for_each_row([&](key_type key, const std::byte* row) {
    require(deeprec_test::address_of(table, key) == row);
    ++rows;
  });
  state.index.for_each([&](key_type, std::uint32_t code) {
    ++keys;
    candidates += detail::is_candidate_code(code) ? 1 : 0;
  });
  require(rows == table.size() && keys == rows + candidates && state.index.size() == keys);
  const keyed_content now = keyed_content_of(table);
  require(static_cast<index_t>(now.rows.size()) == rows);
  require(static_cast<index_t>(now.candidates.size()) == candidates);
  table.begin_step(now.step + 1);
  for (int time = 0; time < 2; ++time) require(deeprec_test::insert(table, keys_from(0, 20)).ok());
  std::vector<key_type> all = keys_from(0, 20);
  for (const auto& [key, row] : now.rows) all.push_back(key);
  for (const auto& [key, count] : now.candidates) all.push_back(key);
  require(table.erase(here, all).ok());
  require(table.size() == 0 && state.index.size() == 0);
}

struct reading {
  by filter;
  bool may_differ;  // from what files were written with
  const chains& written;

  void check_content(const keyed_content& now) const {
    if (may_differ) return;
    require(std::any_of(written.cuts.begin(), written.cuts.end(), [&](const keyed_content& cut) {
      return now.rows == cut.rows && now.step == cut.step;
    }));
  }
};
// A file whose records are not as many as it says, since two have one key: found when they are there.
bool is_of_other_rows(const fault& why) {
  return why.message().find("it was not that of the file before") != std::string::npos;
}

void check_restore(const reading& of, const std::string& folder, const apply_options& options) {
  const auto table = table_of(of.filter);
  std::vector<float> values(2);
  deeprec_test::insert(*table, keys_from(7, 9)).or_throw();
  const keyed_content before = keyed_content_of(*table);
  checkpoint_folder saves(folder);
  saves.add("t", *table).or_throw();
  saves.add(name_table("w", as_table(matrix_view<float>(values.data(), 2, 1)))).or_throw();
  for (int time = 0; time < 2; ++time) {
    const auto read = saves.restore(options);
    const keyed_content now = keyed_content_of(*table);
    if (!read) {
      require(!read.fault().file().empty());
      if (!of.may_differ) require(now == before);
      break;
    }
    if (!read.value()) {
      require(now == before);
      break;
    }
    if (!options.takes) of.check_content(now);
  }
  check(*table);
}
void check_poll(const reading& of, const std::string& folder) {
  const auto table = table_of(of.filter);
  checkpoint_reader files(folder);
  files.add("t", *table).or_throw();
  auto read = files.poll();
  if (read && read.value()) {
    of.check_content(keyed_content_of(*table));
    const checkpoint_position at = files.position();
    read = files.poll();
    require(!read || (!read.value() && files.position() == at));
  }
  check(*table);
}
void check_deltas(const reading& of, const file_place& place, const file_list& files) {
  const auto table = table_of(of.filter);
  checkpoint_position at{of.written.chain_of.front(), 1};
  {
    file_place first;
    first.lay({of.written.files.front()});
    checkpoint_reader reader(first.path());
    reader.add("t", *table).or_throw();
    require(reader.poll().or_throw());
  }
  for (const chains::file& one : files) {
    const checkpoint_position before = at;
    const keyed_content then = keyed_content_of(*table);
    const auto applied = apply_delta(place.path_of(one), "t", *table, at);
    if (applied) {
      of.check_content(keyed_content_of(*table));
      continue;
    }
    require(at == before);
    if (!is_of_other_rows(applied.fault())) require(keyed_content_of(*table) == then);
  }
  check(*table);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  const auto filter = static_cast<by>(data[0] % 3);
  const chains& written = chains_of(filter);
  std::vector<edit> edits;
  for (std::size_t i = 4; i + 6 <= size; i += 6) edits.emplace_back(data + i);
  const file_list files = changed(written.files, edits, data[2]);
  static file_place place;
  place.lay(files);
  const reading of{filter, data[2] % 32 != 0, written};
  const std::uint64_t part = data[3];
  switch (data[1] % 4) {
    case 0:
      check_restore(of, place.path(), {});
      break;
    case 1:
      check_restore(of, place.path(),
                    {.takes = [part](std::string_view, key_type key) { return key % 3 != part % 3; }});
      break;
    case 2:
      check_poll(of, place.path());
      break;
    default:
      check_deltas(of, place, files);
      break;
  }
  return 0;
}
