#include <deeprec/embedding/files/named_rows.hpp>
#include <deeprec/embedding/files/table_file.hpp>

#include <doctest/doctest.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/tables/quantized_rows.hpp>
#include <deeprec/embedding/tables/split_bf16_rows.hpp>
#include <deeprec/memory/counting_resource.hpp>
#include <deeprec/memory/limited_resource.hpp>

#include "support/children.hpp"
#include "support/hashed_source.hpp"
#include "support/sanitizers.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

/// Where a test writes: in memory if the system has such a folder, since a disk is slow to sync.
enum class medium { memory, disk };

/// An empty folder that goes away again.
struct folder {
  explicit folder(medium where = medium::memory) {
    const bool in_memory = where == medium::memory && ::access("/dev/shm", W_OK | X_OK) == 0;
    const std::string parent = in_memory ? "/dev/shm" : std::filesystem::temp_directory_path().string();
    std::string name = parent + "/deeprec_XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;
  ~folder() {
    ::chmod(path.c_str(), 0700);
    std::filesystem::remove_all(path);
  }
  [[nodiscard]] std::string operator/(const std::string& name) const { return path + '/' + name; }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      found.push_back(entry.path().filename().string());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  std::string path;
};

using names = std::vector<std::string>;

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void put_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  REQUIRE(file.flush().good());
}

/// A table of random bytes (NaNs of every kind among them), gaps filled with `gap`.
template <class Format>
struct random_table {
  random_table(index_t rows, Format format, std::uint64_t stream, std::byte gap = std::byte{0xAB})
      : table(rows, format) {
    std::mt19937_64 random(seed() + stream);
    std::fill_n(table.view().data(), table.bytes(), gap);
    each_kept([&](std::byte& b) { b = static_cast<std::byte>(random()); });
  }
  /// The bytes of rows and state, by the definition of the format.
  template <class F>
  void each_kept(const F& f) {
    const Format& format = table.format();
    for (index_t i = 0; i < table.rows(); ++i) {
      std::byte* row = table.view().row(i);
      for (index_t j = 0; j < format.row_bytes(); ++j) f(row[j]);
      auto* const state = reinterpret_cast<std::byte*>(format.state(row));
      for (index_t j = 0; j < format.state_floats() * 4; ++j) f(state[j]);
    }
  }
  [[nodiscard]] std::vector<std::byte> kept() {
    std::vector<std::byte> bytes;
    each_kept([&](std::byte& b) { bytes.push_back(b); });
    return bytes;
  }
  [[nodiscard]] std::vector<std::byte> all() {
    return {table.view().data(), table.view().data() + table.bytes()};
  }
  [[nodiscard]] index_t gaps(std::byte value) {
    index_t count = 0;
    for (const std::byte b : all()) count += b == value ? 1 : 0;
    each_kept([&](const std::byte& b) { count -= b == value ? 1 : 0; });
    return count;
  }
  dense_table<Format> table;
};

template <class... Tables>
result<index_t> save(const std::string& path, const training_state& state, const save_options& options,
                     const Tables&... tables) {
  index_t i = 0;
  const std::vector<const_named_table> parts = {
      name_table("t" + std::to_string(i++), tables.table.view())...};
  return save_tables(path, parts, state, options);
}
template <class... Tables>
result<training_state> load(const std::string& path, const load_options& options, Tables&... tables) {
  index_t i = 0;
  const std::vector<named_table> parts = {name_table("t" + std::to_string(i++), tables.table.view())...};
  return load_tables(path, parts, options);
}
load_options checked_on_read() {
  load_options options;
  options.check = load_options::check_at::on_read;
  return options;
}

template <class T>
std::string refusal(const result<T>& answer) {
  return answer ? "no refusal" : answer.fault().message();
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A small file of two tables, and what it was made of.
struct small_file {
  explicit small_file(const std::string& where) : path(where) {
    REQUIRE(save(path, state, {.block_bytes = 40}, a, b));
    good = bytes_of(path);
  }
  std::string path;
  training_state state{7, {{"rate", 0.5}, {"seed", index_t{3}}}};
  random_table<f32_rows> a{3, f32_rows(3, {.state_floats = 1, .stride_bytes = 24}), 1};
  random_table<bf16_rows> b{5, bf16_rows(3), 2};
  std::string good;
};

/// The checksums of start and header made right again, for whatever the fields say now.
std::string with_right_checksums(std::string file, std::size_t header_bytes) {
  const auto put_hash = [&](std::size_t at) {
    const std::uint64_t hash = hash_bytes(std::string_view(file).substr(0, at));
    std::memcpy(file.data() + at, &hash, sizeof(hash));
  };
  put_hash(56);
  put_hash(header_bytes - 8);
  return file;
}
std::size_t header_bytes_of(const std::string& file) {
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, file.data() + 16, sizeof(bytes));
  return static_cast<std::size_t>(bytes);
}

}  // namespace

TEST_CASE_TEMPLATE("table_file: rows and the state beside them come back bit for bit", T, float, bf16, f16) {
  using format = plain_rows<T>;
  const folder here;
  const std::string path = here / "tables";
  std::uint64_t stream = 10;
  for (const index_t rows : {0, 1, 67}) {
    for (const index_t width : {1, 3, 64}) {
      for (const index_t state : {0, 1, 5}) {
        for (const index_t gap : {0, 24}) {
          for (const index_t block : {7, 1000}) {
            CAPTURE(rows);
            CAPTURE(width);
            CAPTURE(state);
            CAPTURE(gap);
            CAPTURE(block);
            const format tight(width, {.state_floats = state});
            const format wide(width, {.state_floats = state, .stride_bytes = tight.stride_bytes() + gap});
            random_table<format> out(rows, wide, stream++);
            REQUIRE(save(path, {}, {.block_bytes = block}, out));
            for (const load_options::check_at check :
                 {load_options::check_at::before, load_options::check_at::on_read}) {
              load_options options;
              options.check = check;
              random_table<format> in(rows, wide, stream++, std::byte{0xCD});
              random_table<format> other_stride(rows, tight, stream++);
              const index_t gaps = in.gaps(std::byte{0xCD});
              CHECK((rows == 0 || in.kept() != out.kept()));
              REQUIRE(load(path, options, in));
              CHECK(in.kept() == out.kept());
              CHECK(in.gaps(std::byte{0xCD}) == gaps);
              REQUIRE(load(path, options, other_stride));
              CHECK(other_stride.kept() == out.kept());
            }
          }
        }
      }
    }
  }
}

namespace {

/// Every row format of the library under its name in files, 7 columns wide (an odd nibble is left over).
template <class F>
void each_format(const F& f) {
  const auto quantized = [&](auto tag, const char* last, const char* first) {
    using format = decltype(tag);
    f(last, format(7, {.place = scale_bias::last}),
      format(7, {.place = scale_bias::last, .stride_bytes = 64}));
    f(first, format(7, {.place = scale_bias::first}),
      format(7, {.place = scale_bias::first, .stride_bytes = 50}));
  };
  quantized(quantized_rows<8, float>{}, "int8_f32", "f32_int8");
  quantized(quantized_rows<8, f16>{}, "int8_f16", "f16_int8");
  quantized(quantized_rows<4, float>{}, "int4_f32", "f32_int4");
  quantized(quantized_rows<4, f16>{}, "int4_f16", "f16_int4");
  f("int8_f32", int8_rows(7), int8_rows(7, {.place = scale_bias::last, .stride_bytes = 40}));
  f("split_bf16", split_bf16_rows(7), split_bf16_rows(7, {.stride_bytes = 40}));
  f("split_bf16", split_bf16_rows(7, {.state_floats = 3}),
    split_bf16_rows(7, {.state_floats = 3, .stride_bytes = 48}));
  f("e4m3", e4m3_rows(7), e4m3_rows(7, {.stride_bytes = 16}));
  f("e5m2", e5m2_rows(7, {.state_floats = 2}), e5m2_rows(7, {.state_floats = 2, .stride_bytes = 20}));
  f("f64", plain_rows<double>(7), plain_rows<double>(7, {.stride_bytes = 72}));
  f("f32", f32_rows(7), f32_rows(7, {.stride_bytes = 60}));
  f("f16", f16_rows(7), f16_rows(7, {.stride_bytes = 60}));
  f("bf16", bf16_rows(7), bf16_rows(7, {.stride_bytes = 60}));
}

}  // namespace

TEST_CASE("table_file: tables are given in braces too") {
  const folder here;
  dense_table<f32_rows> items(5, 3), users(2, 4);
  items.view().row(4)[0] = std::byte{7};
  REQUIRE(save_tables(here / "f", {name_table("items", items.view()), name_table("users", users.view())},
                      {.step = 9, .numbers = {}}));
  dense_table<f32_rows> again(5, 3), others(2, 4);
  const auto at =
      load_tables(here / "f", {name_table("users", others.view()), name_table("items", again.view())});
  REQUIRE(at);
  CHECK(at.value().step == 9);
  CHECK(again.view().row(4)[0] == std::byte{7});
  const auto& read_only = items;
  REQUIRE(save_tables(here / "f", {name_table("items", read_only.view())}));
  CHECK(load_tables(here / "f", {name_table("items", again.view())}));
  const std::vector<named_table> both{name_table("items", items.view()), name_table("users", users.view())};
  REQUIRE(save_tables(here / "f", both));
  CHECK(load_tables(here / "f", both));
}

TEST_CASE("table_file: every row format is saved under a name of its own, and no other one loads it") {
  const folder here;
  std::uint64_t stream = 50;
  each_format([&](const std::string& name, const auto& tight, const auto& wide) {
    CAPTURE(name);
    random_table out(13, tight, stream++);
    random_table in(13, wide, stream++, std::byte{0xCD});
    const index_t gaps = in.gaps(std::byte{0xCD});
    const std::string path = here / name;
    REQUIRE(save(path, {}, {.block_bytes = 50}, out));
    CHECK(describe_file(path).or_throw().tables.at(0).format == name);
    REQUIRE(load(path, {}, in));
    CHECK(in.kept() == out.kept());
    CHECK(in.gaps(std::byte{0xCD}) == gaps);
    std::vector<float> left(7), right(7);
    for (index_t i = 0; i < 13; ++i) {
      tight.decode(out.table.view().row(i), left.data());
      wide.decode(in.table.view().row(i), right.data());
      CHECK(std::memcmp(left.data(), right.data(), 7 * sizeof(float)) == 0);
    }
  });
  int refused = 0;
  each_format([&](const std::string& name, const auto& format, const auto&) {
    random_table in(13, format, stream++);
    const auto before = in.all();
    for (const std::string& other : here.names()) {
      if (other == name) continue;
      const auto answer = load(here / other, {}, in);
      INFO(other, " as ", name);
      REQUIRE_FALSE(answer);
      CHECK(answer.fault().code() == errc::shape_mismatch);
      CHECK(answer.fault().file() == here / other);
      CHECK(has(refusal(answer), "table \"t0\": format " + other + " in the file, " + name + " here"));
      ++refused;
    }
    CHECK(in.all() == before);
  });
  CHECK(here.names().size() == 15);
  CHECK(refused == 17 * 14);
}

TEST_CASE("table_file: several tables and the numbers beside them come back, and describe_file lists them") {
  const folder here(medium::disk);
  const std::string path = here / "tables";
  random_table<f32_rows> users(100, f32_rows(16, {.state_floats = 1, .stride_bytes = 80}), 1);
  random_table<bf16_rows> items(31, bf16_rows(9), 2);
  random_table<f16_rows> none(0, f16_rows(4, {.state_floats = 2}), 3);
  const training_state state{std::numeric_limits<std::uint64_t>::max(),
                             {{"rate", 0.1},
                              {"no number", -std::numeric_limits<double>::infinity()},
                              {"seed", std::numeric_limits<index_t>::min()},
                              {"", 1}}};
  const auto length = save(path, state, {.block_bytes = 128}, users, items, none);
  REQUIRE(length);
  CHECK(length.value() == static_cast<index_t>(std::filesystem::file_size(path)));

  random_table<f32_rows> users_back(100, f32_rows(16, {.state_floats = 1}), 4);
  random_table<bf16_rows> items_back(31, bf16_rows(9), 5);
  random_table<f16_rows> none_back(0, f16_rows(4, {.state_floats = 2}), 6);
  const auto back = load(path, {}, users_back, items_back, none_back);
  REQUIRE(back);
  CHECK(back.value() == state);
  CHECK(back.value().real("rate") == 0.1);
  CHECK(back.value().whole("seed") == std::numeric_limits<index_t>::min());
  CHECK_FALSE(back.value().whole("rate").has_value());
  CHECK_FALSE(back.value().real("absent").has_value());
  CHECK(users_back.kept() == users.kept());
  CHECK(items_back.kept() == items.kept());

  const auto info = describe_file(path);
  REQUIRE(info);
  CHECK(info.value().version == 1);
  CHECK(info.value().bytes == length.value());
  CHECK(info.value().block_bytes == 128);
  CHECK(info.value().state == state);
  CHECK(info.value().tables == std::vector<table_entry>{{"t0", "f32", 100, 16, 64, 80, 1},
                                                        {"t1", "bf16", 31, 9, 18, 18, 0},
                                                        {"t2", "f16", 0, 4, 8, 16, 2}});
  CHECK(here.names() == names{"tables"});
}

TEST_CASE("table_file: a file without tables holds its numbers") {
  const folder here;
  REQUIRE(save(here / "state", {.step = 5, .numbers = {}}, {}));
  const auto back = load(here / "state", {});
  REQUIRE(back);
  CHECK(back.value().step == 5);
}

TEST_CASE("table_file: dense matrices are tables") {
  const folder here;
  std::vector<float> weights{1, 2, 3, 4, 5, 6}, back(6);
  const const_named_table out[] = {name_table("w", as_table(matrix_view<const float>(weights.data(), 1, 6)))};
  REQUIRE(save_tables(here / "w", out, {}, {.block_bytes = 10}));
  const named_table in[] = {name_table("w", as_table(matrix_view<float>(back.data(), 1, 6)))};
  REQUIRE(load_tables(here / "w", in));
  CHECK(back == weights);
}

TEST_CASE("table_file: the format of version 1 does not change unnoticed") {
  if (std::endian::native != std::endian::little) return;
  const folder here;
  dense_table<f32_rows> table(2, f32_rows(2));
  const float rows[4] = {1, -2, 0.5F, 4};
  std::memcpy(table.view().data(), rows, sizeof(rows));
  const const_named_table parts[] = {name_table("items", table.view())};
  REQUIRE(save_tables(here / "f", parts, {3, {{"rate", 0.25}}}, {.block_bytes = 8}));
  const std::string file = bytes_of(here / "f");
  CHECK(file.size() == 64 + 20 + 56 + 8 + 2 * 16 + 8);
  CHECK(hash_bytes(file) == 0x71ef72bea2d8afa8);
}

TEST_CASE("table_file: the format of version 2, with owners of states, does not change unnoticed") {
  if (std::endian::native != std::endian::little) return;
  const folder here;
  dense_table<f32_rows> table(2, f32_rows(2, {.state_floats = 1, .state_owner = "rowwise_adagrad"}));
  for (index_t r = 0; r < 2; ++r) {
    const float row[3] = {1, static_cast<float>(r), 0.5F};
    std::memcpy(table.view().row(r), row, sizeof(row));
  }
  const const_named_table parts[] = {name_table("items", table.view())};
  REQUIRE(save_tables(here / "f", parts, {3, {{"rate", 0.25}}}, {.block_bytes = 8}));
  const std::string file = bytes_of(here / "f");
  CHECK(file.size() == 64 + 20 + (56 + 4 + 15) + 8 + 3 * 16 + 8);
  CHECK(hash_bytes(file) == 0x684eb040412c21f4);
}

TEST_CASE("table_file: every flipped byte is refused, and the tables stay as they were") {
  const folder here;
  small_file f(here / "tables");
  random_table<f32_rows> a(3, f32_rows(3, {.state_floats = 1}), 3);
  random_table<bf16_rows> b(5, bf16_rows(3), 4);
  const auto a_before = a.all();
  const auto b_before = b.all();
  int header_alone_lets_pass = 0;
  std::map<errc, int> codes;
  for (std::size_t at = 0; at < f.good.size(); ++at) {
    for (const unsigned flip : {1U, 2U, 4U, 8U, 16U, 32U, 64U, 128U, 255U}) {
      std::string bad = f.good;
      bad[at] = static_cast<char>(static_cast<unsigned char>(bad[at]) ^ flip);
      put_bytes(f.path, bad);
      const auto answer = load(f.path, {}, a, b);
      INFO("byte ", at, " flipped by ", flip);
      REQUIRE_FALSE(answer);
      ++codes[answer.fault().code()];
      REQUIRE(answer.fault().file() == f.path);
      REQUIRE((has(refusal(answer), "checksum") || at < 16));
      REQUIRE(a.all() == a_before);
      REQUIRE(b.all() == b_before);
      REQUIRE_FALSE(load(f.path, checked_on_read(), f.a, f.b));
      header_alone_lets_pass += describe_file(f.path).ok() ? 1 : 0;
    }
  }
  CHECK(codes.size() == 1);
  CHECK(codes.count(errc::invalid_value) == 1);
  CHECK(header_alone_lets_pass > 9 * 60);  // what a reader without checksums of the rows would take
  put_bytes(f.path, f.good);
  REQUIRE(load(f.path, {}, a, b));
  CHECK(a.all() != a_before);
}

TEST_CASE("table_file: every shorter file is refused, and longer ones") {
  const folder here;
  small_file f(here / "tables");
  for (std::size_t length = 0; length < f.good.size(); ++length) {
    put_bytes(f.path, f.good.substr(0, length));
    const auto answer = load(f.path, {}, f.a, f.b);
    INFO("length ", length);
    REQUIRE_FALSE(answer);
    REQUIRE(answer.fault().code() == errc::invalid_value);
    const std::string why = "truncated: ends at byte " + std::to_string(length) + " of " +
                            std::to_string(length < 64 ? 64 : f.good.size());
    REQUIRE(has(refusal(answer), length == 0 ? "an empty file" : why));
    REQUIRE_FALSE(describe_file(f.path));
  }
  for (const std::size_t more : {1U, 8U, 4096U}) {
    put_bytes(f.path, f.good + std::string(more, '\0'));
    const auto answer = load(f.path, {}, f.a, f.b);
    REQUIRE_FALSE(answer);
    CHECK(has(refusal(answer), "bytes instead of"));
  }
}

TEST_CASE("table_file: blocks of another file, of another place or of an older save are refused") {
  const folder here;
  random_table<f32_rows> first(40, f32_rows(5), 1), second(40, f32_rows(5), 2);
  const auto file_of = [&](const random_table<f32_rows>& t, std::uint64_t step) {
    REQUIRE(save(here / "f", {.step = step, .numbers = {}}, {.block_bytes = 80}, t));
    return bytes_of(here / "f");
  };
  const std::string good = file_of(first, 1), older = file_of(second, 1), other_step = file_of(first, 2);
  const std::size_t blocks = header_bytes_of(good);
  REQUIRE(good.size() == blocks + 10 * 88 + 8);
  const auto answer_to = [&](const std::string& file) {
    put_bytes(here / "f", file);
    return refusal(load(here / "f", {}, first));
  };
  CHECK(answer_to(good) == "no refusal");
  std::string swapped = good;
  std::swap_ranges(swapped.begin() + static_cast<std::ptrdiff_t>(blocks),
                   swapped.begin() + static_cast<std::ptrdiff_t>(blocks + 88),
                   swapped.begin() + static_cast<std::ptrdiff_t>(blocks + 88));
  CHECK(has(answer_to(swapped), "table \"t0\": the checksum of bytes " + std::to_string(blocks) + " to " +
                                    std::to_string(blocks + 80) + " is another"));
  std::string mixed = good;  // each block by itself is right
  mixed.replace(blocks + 88, 88, older, blocks + 88, 88);
  CHECK(has(answer_to(mixed), "the checksum of all blocks"));
  std::string foreign = good;
  foreign.replace(blocks + 88, 88, other_step, blocks + 88, 88);
  CHECK(has(answer_to(foreign), "the checksum of bytes"));
}

TEST_CASE("table_file: headers that lie, with right checksums, are refused") {
  const folder here;
  small_file f(here / "tables");
  const std::size_t header = header_bytes_of(f.good);
  std::mt19937_64 random(seed());
  const std::uint64_t values[] = {0, 1, ~std::uint64_t{0}, std::uint64_t{1} << 63, 0x1555555555555555};
  int refused = 0;
  for (std::size_t at = 16; at + 8 <= header - 8; ++at) {
    for (const std::size_t size : {1U, 4U, 8U}) {
      for (int k = 0; k < 6; ++k) {
        std::string bad = f.good;
        const std::uint64_t value = k < 5 ? values[k] : random();
        std::memcpy(bad.data() + at, &value, size);
        if (bad == f.good) continue;
        bad = with_right_checksums(bad, header);
        if (bad == f.good) continue;
        put_bytes(f.path, bad);
        INFO("byte ", at, " size ", size, " value ", value);
        REQUIRE_FALSE(load(f.path, {}, f.a, f.b));
        ++refused;
      }
    }
  }
  CHECK(refused > 1000);
}

TEST_CASE("table_file: other versions, other byte orders and foreign files are named as such") {
  const folder here;
  small_file f(here / "tables");
  const std::size_t header = header_bytes_of(f.good);
  const auto answer_to = [&](const std::string& file) {
    put_bytes(f.path, file);
    return load(f.path, {}, f.a, f.b);
  };
  std::string newer = f.good;
  newer[12] = 3;
  const auto version = answer_to(with_right_checksums(newer, header));
  REQUIRE_FALSE(version);
  CHECK(version.fault().code() == errc::unsupported);
  CHECK(has(refusal(version), "version 3 of the format (byte 12); this reads 1 to 2"));
  std::string swapped = f.good;
  std::reverse(swapped.begin() + 8, swapped.begin() + 12);
  const auto order = answer_to(swapped);
  REQUIRE_FALSE(order);
  CHECK(order.fault().code() == errc::unsupported);
  CHECK(has(refusal(order), "other byte order"));
  for (const std::string& text :
       {"PK\x03\x04" + std::string(100, 'x'), std::string("\n"), std::string(1000, '\0')}) {
    CHECK(has(refusal(answer_to(text)), "no file of tables: the first 8 bytes are others"));
  }
}

TEST_CASE("table_file: what is no file is refused with the system's reason") {
  const folder here;
  random_table<f32_rows> t(2, f32_rows(2), 1);
  std::filesystem::create_directory(here / "sub");
  const auto both = [&](const std::string& path, const std::string& on_save, const std::string& on_load) {
    const auto saved = save(path, {}, {}, t);
    REQUIRE_FALSE(saved);
    CHECK(saved.fault().code() == errc::io_error);
    CHECK(has(refusal(saved), on_save));
    const auto loaded = load(path, {}, t);
    REQUIRE_FALSE(loaded);
    CHECK(loaded.fault().code() == errc::io_error);
    CHECK(has(refusal(loaded), on_load));
    CHECK_FALSE(describe_file(path));
  };
  both(here / "sub", "is a directory", "is a directory");
  both(here / "sub/", "names no file", "is a directory");
  both(here / "absent/f", "cannot open its folder: No such file", "cannot open: No such file");
  both("/dev/full", "is not a regular file", "is not a regular file");
  both("", "names no file", "cannot open");
  const auto absent = load(here / "absent", {}, t);
  CHECK(refusal(absent) ==
        (here / "absent") + ": input or output error: load_tables: cannot open: No such file or directory");
  CHECK(absent.fault().place().operation == std::string("load_tables"));
  CHECK(has(refusal(describe_file(here / "absent")), "describe_file: cannot open: No such file"));
  REQUIRE(::mkfifo((here / "pipe").c_str(), 0600) == 0);
  CHECK(has(refusal(load(here / "pipe", {}, t)), "is not a regular file"));
  CHECK(here.names() == names{"pipe", "sub"});
}

TEST_CASE("table_file: a saver that may not write leaves the old file") {
  const folder here;
  small_file f(here / "tables");
  const bool root = ::geteuid() == 0;
  ::chmod(here.path.c_str(), 0555);
  if (root) REQUIRE(::seteuid(65534) == 0);
  const auto answer = save(f.path, {}, {}, f.b);
  if (root) REQUIRE(::seteuid(0) == 0);
  REQUIRE_FALSE(answer);
  CHECK(answer.fault().code() == errc::io_error);
  CHECK(has(refusal(answer), "tables.saving beside it: Permission denied"));
  CHECK(bytes_of(f.path) == f.good);
  CHECK(here.names() == names{"tables"});
}

TEST_CASE("table_file: a full disk leaves the old file and nothing beside it") {
  CHECK(has(refusal(detail::write_all(detail::open_at(AT_FDCWD, "/dev/full", O_WRONLY).get(),
                                      std::vector<std::byte>(10).data(), 10)),
            "cannot write: No space left on device"));
  const folder here;
  small_file f(here / "tables");
  random_table<f32_rows> large(1000, f32_rows(16), 5);
  ::rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  for (const index_t limit : {0, 1, 63, 64, 100, 1000, 64000}) {
    ::rlimit less = old;
    less.rlim_cur = static_cast<rlim_t>(limit);
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &less) == 0);
    const auto answer = save(f.path, {}, {.block_bytes = 1 << 10}, large);
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &old) == 0);
    INFO("limit ", limit);
    REQUIRE_FALSE(answer);
    CHECK(answer.fault().code() == errc::io_error);
    CHECK(has(refusal(answer), "cannot write: File too large"));
    CHECK(bytes_of(f.path) == f.good);
    CHECK(here.names() == names{"tables"});
  }
  std::signal(SIGXFSZ, handler);
  CHECK(save(f.path, {}, {.block_bytes = 1 << 10}, large));
}

TEST_CASE("table_file: a table of another shape is refused by name, before anything is written") {
  const folder here;
  const std::string path = here / "tables";
  random_table<f32_rows> items(6, f32_rows(4, {.state_floats = 1}), 1);
  random_table<bf16_rows> users(3, bf16_rows(8), 2);
  REQUIRE(save(path, {}, {}, items, users));
  const auto expect = [&](auto into, const std::string& why) {
    random_table<f32_rows> first(6, f32_rows(4, {.state_floats = 1}), 3);
    const auto before = first.all();
    const auto answer = load(path, {}, first, into);
    REQUIRE_FALSE(answer);
    CHECK(answer.fault().code() == errc::shape_mismatch);
    CHECK(has(refusal(answer), why));
    CHECK(first.all() == before);
  };
  expect(random_table<bf16_rows>(4, bf16_rows(8), 4), "table \"t1\": rows 3 in the file, 4 here");
  expect(random_table<bf16_rows>(3, bf16_rows(7), 4), "table \"t1\": width 8 in the file, 7 here");
  expect(random_table<f16_rows>(3, f16_rows(8), 4), "table \"t1\": format bf16 in the file, f16 here");
  expect(random_table<bf16_rows>(3, bf16_rows(8, {.state_floats = 2}), 4),
         "table \"t1\": floats of state 0 in the file, 2 here");
  CHECK(has(refusal(load(path, {}, items)), "table \"t1\" is only in the file"));
  CHECK(has(refusal(load(path, {}, items, users, users)), "table \"t2\" is not in the file"));
  load_options part;
  part.others = load_options::unknown::ignore;
  random_table<f32_rows> alone(6, f32_rows(4, {.state_floats = 1}), 5);
  REQUIRE(load(path, part, alone));
  CHECK(alone.kept() == items.kept());
}

TEST_CASE("hazard H19: a table is found by its whole name, not by a part of it") {
  const folder here;
  random_table<f32_rows> a(4, f32_rows(3), 1), b(4, f32_rows(3), 2), in(4, f32_rows(3), 3);
  const auto save_as = [&](const std::string& first, const std::string& second) {
    const const_named_table parts[] = {name_table(first, a.table.view()), name_table(second, b.table.view())};
    REQUIRE(save_tables(here / "f", parts));
  };
  load_options alone;
  alone.others = load_options::unknown::ignore;
  const std::pair<const char*, const char*> names_of[] = {
      {"item", "item_2"}, {"item_2", "item"}, {"t1", "t10"}, {"t10", "t1"}, {"a/b", "b"}, {"xy ", "xy"}};
  for (const auto& [first, second] : names_of) {
    CAPTURE(first);
    save_as(first, second);
    for (const bool second_one : {false, true}) {
      const named_table part[] = {name_table(second_one ? second : first, in.table.view())};
      REQUIRE(load_tables(here / "f", part, alone));
      CHECK(in.kept() == (second_one ? b : a).kept());
    }
    const named_table part[] = {name_table(std::string(first).substr(0, 1), in.table.view())};
    CHECK(has(refusal(load_tables(here / "f", part, alone)),
              "table \"" + std::string(first).substr(0, 1) + "\" is not in the file"));
  }
}

TEST_CASE("table_file: views that make no sense are refused") {
  const folder here;
  random_table<f32_rows> t(2, f32_rows(2), 1);
  const auto answer_to = [&](std::vector<const_named_table> tables, save_options options = {}) {
    const auto answer = save_tables(here / "f", tables, {}, options);
    CHECK(here.names().empty());
    return refusal(answer);
  };
  const const_named_table good = name_table("t", t.table.view());
  CHECK(has(answer_to({good, good}), "table \"t\": two tables have this name"));
  const auto with = [&](auto change) {
    const_named_table bad = good;
    change(bad);
    return std::vector<const_named_table>{bad};
  };
  CHECK(has(answer_to(with([](auto& b) { b.name.clear(); })), "table 0 has no name"));
  CHECK(has(answer_to(with([](auto& b) { b.rows = -1; })), "negative"));
  CHECK(has(answer_to(with([](auto& b) { b.rows = std::numeric_limits<index_t>::max(); })), "too large"));
  CHECK(has(answer_to(with([](auto& b) { b.data = nullptr; })), "no memory"));
  CHECK(has(answer_to(with([](auto& b) { b.stride_bytes = 7; })), "stride"));
  CHECK(has(answer_to(with([](auto& b) { b.state_floats = 1; })), "stride"));
  CHECK(has(answer_to({good}, {.block_bytes = 0}), "block_bytes"));
  const std::string longest(65535, 'n');
  CHECK(has(answer_to(with([&](auto& b) { b.name = longest + 'n'; })), "of more than 65535 bytes"));
  CHECK(has(answer_to(with([&](auto& b) { b.format = longest + 'n'; })), "of more than 65535 bytes"));
  CHECK(has(refusal(save_tables(here / "f", {}, {0, {{longest + 'n', 1.0}}})), "of more than 65535 bytes"));
  CHECK(here.names().empty());
  const auto long_names = with([&](auto& b) { b.name = b.format = longest; });
  REQUIRE(save_tables(here / "f", long_names, {0, {{longest, 1.0}}}));
  CHECK(describe_file(here / "f").or_throw().tables.at(0).format == longest);
}

TEST_CASE("table_file: what does not fit into memory is a fault of every function") {
  const folder here;
  random_table<f32_rows> t(3000, f32_rows(8), 1), other(3000, f32_rows(8), 2);
  REQUIRE(save(here / "f", {}, {.block_bytes = 40'000}, t));
  const auto before = other.all();
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{39'999}, std::size_t{40'007}}) {  // and 8 of a hash
    limited_resource memory(bytes, std::pmr::new_delete_resource());
    load_options options;
    options.memory = &memory;
    const auto loaded = load(here / "f", options, other);
    REQUIRE_FALSE(loaded);
    CHECK(loaded.fault().code() == errc::out_of_memory);
    CHECK(loaded.fault().file() == here / "f");
    const auto saved = save(here / "f", {}, {.block_bytes = 40'000, .memory = &memory}, other);
    REQUIRE_FALSE(saved);
    CHECK(saved.fault().code() == errc::out_of_memory);
  }
  CHECK(other.all() == before);
  CHECK(here.names() == names{"f"});
  REQUIRE(load(here / "f", {}, other));
  CHECK(other.all() == t.all());
#if !DEEPREC_TEST_SANITIZED  // their own memory is beyond any limit
  // A header that is right: three million numbers, of 16 bytes in the file and 56 in memory.
  const training_state many{1, std::vector<named_number>(3'000'000, {"", 1.5})};
  REQUIRE(save(here / "many", many, {}));
  CHECK(describe_file(here / "many").or_throw().state == many);
  for (const std::size_t megabytes : {std::size_t{1}, std::size_t{30}, std::size_t{60}}) {
    CAPTURE(megabytes);
    CHECK(deeprec_test::in_child([&] {
            std::size_t pages = 0;
            std::ifstream("/proc/self/statm") >> pages;
            const auto bytes =
                static_cast<rlim_t>(pages * static_cast<std::size_t>(::getpagesize()) + (megabytes << 20));
            const ::rlimit limit{bytes, bytes};
            if (::setrlimit(RLIMIT_AS, &limit) != 0) return 2;
            try {
              const auto described = describe_file(here / "many");
              const auto loaded = load(here / "many", {});
              if (described || described.fault().code() != errc::out_of_memory) return 3;
              if (loaded || loaded.fault().code() != errc::out_of_memory) return 4;
              const auto saved = save(here / "again", many, {});
              return !saved && saved.fault().code() == errc::out_of_memory ? 0 : 5;
            } catch (const std::bad_alloc&) {
              return 6;
            }
          }) == 0);
  }
  CHECK(here.names() == names{"f", "many"});
#endif
}

TEST_CASE("table_file: the only buffer is one block, however large the tables") {
  const folder here;
  counting_resource memory(std::pmr::new_delete_resource());
  random_table<f32_rows> t(50000, f32_rows(8, {.state_floats = 1}), 1);
  REQUIRE(save(here / "f", {}, {.block_bytes = 4096, .memory = &memory}, t));
  CHECK(memory.statistics().most_bytes >= 4096);
  CHECK(memory.statistics().most_bytes < 4096 + 64);
  load_options options;
  options.memory = &memory;
  REQUIRE(load(here / "f", options, t));
  CHECK(memory.statistics().most_bytes < 4096 + 64);
  CHECK(memory.statistics().bytes == 0);
}

TEST_CASE("table_file: a link is replaced, a mode is kept, a leftover is removed") {
  const folder here(medium::disk);
  random_table<f32_rows> t(2, f32_rows(2), 1);
  put_bytes(here / "target", "as it was");
  std::filesystem::create_symlink("target", here / "link");
  REQUIRE(save(here / "link", {}, {}, t));
  CHECK(std::filesystem::symlink_status(here / "link").type() == std::filesystem::file_type::regular);
  CHECK(bytes_of(here / "target") == "as it was");
  REQUIRE(::chmod((here / "link").c_str(), 0640) == 0);
  put_bytes(here / "link.saving", std::string(100000, 'x'));
  REQUIRE(save(here / "link", {}, {}, t));
  CHECK(std::filesystem::status(here / "link").permissions() == std::filesystem::perms{0640});
  REQUIRE(load(here / "link", {}, t));
  // Owner, mode, other names and content of a leftover stay its own.
  for (const ::mode_t mode : {0666U, 0600U, 0200U}) {
    for (const char* name : {"link", "fresh"}) {
      const bool replaces = std::string(name) == "link";
      const std::string leftover = here / (std::string(name) + ".saving");
      std::filesystem::remove(here / "fresh");
      std::filesystem::create_hard_link(here / "target", leftover);
      REQUIRE(::chmod(leftover.c_str(), mode) == 0);
      if (::geteuid() == 0) REQUIRE(::chown(leftover.c_str(), 65534, 65534) == 0);
      const ::mode_t mask = ::umask(027);
      const auto answer = save(here / name, {}, {}, t);
      ::umask(mask);
      INFO(name, ", ", mode);
      REQUIRE(answer);
      struct ::stat facts{};
      REQUIRE(::stat((here / name).c_str(), &facts) == 0);
      CHECK((facts.st_mode & 0777U) == 0640);  // of the old file, or what umask leaves
      CHECK(facts.st_uid == ::geteuid());
      CHECK(facts.st_nlink == 1);
      REQUIRE(::chmod((here / "target").c_str(), 0600) == 0);
      CHECK(bytes_of(here / "target") == "as it was");
      CHECK(here.names() == (replaces ? names{"link", "target"} : names{"fresh", "link", "target"}));
      REQUIRE(load(here / name, {}, t));
    }
  }
  std::filesystem::remove(here / "fresh");
  std::filesystem::create_symlink("target", here / "link.saving");  // nobody writes through this
  CHECK_FALSE(save(here / "link", {}, {}, t));
  CHECK(bytes_of(here / "target") == "as it was");
}

TEST_CASE("table_file: of savers at the same time one goes on, the others are told, the file is whole") {
  const folder here;
  const std::string path = here / "tables";
  {
    detail::replacement_file held;
    REQUIRE(held.open(path).ok());
    random_table<f32_rows> t(2, f32_rows(2), 1);
    CHECK(has(refusal(save(path, {}, {}, t)), "another process or thread is saving it"));
  }
  CHECK(here.names().empty());
  std::vector<std::thread> threads;
  std::vector<int> saved(4), other_faults(4);
  for (std::size_t k = 0; k < 4; ++k) {
    threads.emplace_back([&, k] {
      dense_table<f32_rows> t(500, f32_rows(8));
      std::memset(t.view().data(), static_cast<int>(k) + 1, t.bytes());
      const const_named_table parts[] = {name_table("t0", t.view())};
      for (int i = 0; i < 50; ++i) {
        const auto answer = save_tables(path, parts, {}, {.block_bytes = 512});
        saved[k] += answer.ok() ? 1 : 0;
        other_faults[k] += answer.ok() || has(refusal(answer), "another process or thread") ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(saved[0] + saved[1] + saved[2] + saved[3] > 0);
  CHECK(other_faults == std::vector<int>(4));
  CHECK(here.names() == names{"tables"});
  random_table<f32_rows> back(500, f32_rows(8), 1);
  REQUIRE(load(path, {}, back));
  const auto bytes = back.all();
  CHECK(std::count(bytes.begin(), bytes.end(), bytes[0]) == static_cast<std::ptrdiff_t>(bytes.size()));
}

namespace {

/// Runs `save(step)` for step = 1, 2, ... in a process that is killed after some microseconds.
void kill_while(const std::function<void(std::uint64_t)>& save_step, unsigned after) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    for (std::uint64_t step = 1;; ++step) save_step(step);
  }
  ::usleep(after);
  ::kill(child, SIGKILL);
  int how = 0;
  REQUIRE(::waitpid(child, &how, 0) == child);
  REQUIRE(WIFSIGNALED(how));
}

}  // namespace

TEST_CASE("table_file: a saver that is killed at any moment leaves all of one save") {
  const folder here;
  const std::string path = here / "tables";
  const f32_rows format(16, {.state_floats = 1});
  random_table<f32_rows> a(3000, format, 1), b(3000, format, 2), back(3000, format, 3);
  const auto a_bytes = a.kept(), b_bytes = b.kept();
  const save_options options{.block_bytes = 16 << 10};
  const auto save_step = [&](std::uint64_t step) {
    if (!save(path, {.step = step, .numbers = {}}, options, step % 2 == 0 ? a : b)) ::_exit(1);
  };
  save_step(0);
  std::mt19937_64 random(seed());
  int even = 0, odd = 0, leftovers = 0;
  for (int round = 0; round < 200; ++round) {
    kill_while(save_step, static_cast<unsigned>(random() % 10000));
    const auto answer = load(path, {}, back);
    INFO("round ", round, ": ", refusal(answer));
    REQUIRE(answer);
    const bool is_even = answer.value().step % 2 == 0;
    ++(is_even ? even : odd);
    REQUIRE(back.kept() == (is_even ? a_bytes : b_bytes));
    const names found = here.names();
    REQUIRE(found.front() == "tables");
    REQUIRE(found.size() <= 2);
    if (found.size() == 2) {
      REQUIRE(found.back() == "tables.saving");
      ++leftovers;
    }
  }
  MESSAGE("loaded ", even, " even and ", odd, " odd steps; ", leftovers, " files were left over");
  CHECK(even > 0);
  CHECK(odd > 0);
  CHECK(leftovers > 0);
  save_step(0);
  CHECK(here.names() == names{"tables"});

  // A saver that writes into the file itself is caught by the same test.
  const std::string good = bytes_of(path);
  int caught = 0;
  for (int round = 0; round < 50 && caught == 0; ++round) {
    kill_while(
        [&](std::uint64_t) {
          std::ofstream file(path, std::ios::binary | std::ios::trunc);
          for (std::size_t at = 0; at < good.size(); at += 1000) file << good.substr(at, 1000) << std::flush;
        },
        static_cast<unsigned>(random() % 10000));
    caught += load(path, {}, back).ok() ? 0 : 1;
  }
  CHECK(caught > 0);
}

namespace {

constexpr index_t keyed_rows = 500, keyed_width = 12;

void values_of_key(std::uint64_t key, float* values) {
  for (index_t j = 0; j < keyed_width; ++j) values[j] = static_cast<float>((key >> j) % 1000);
}

using keyed_table = deeprec_test::hashed_table<f32_rows>;
using keyed_source = deeprec_test::hashed_rows<f32_rows>;

f32_rows keyed_format() { return f32_rows(keyed_width, {.state_floats = 2}); }

/// Fills a table with rows and state that differ from the initial ones.
void fill_keyed(keyed_table& table) {
  std::vector<std::uint64_t> keys;
  for (std::uint64_t k = 0; k < static_cast<std::uint64_t>(keyed_rows); ++k) keys.push_back(mix64(k));
  REQUIRE(table.insert(keys.data(), keyed_rows).ok());
  for (std::size_t r = 0; r < table.size(); ++r) {
    auto* const floats = static_cast<float*>(static_cast<void*>(table.row(r)));
    for (index_t j = 0; j < keyed_width + 2; ++j) floats[j] += static_cast<float>(r) + 0.5F;
  }
}

/// The number of keys whose rows differ.
std::size_t differing(keyed_table& a, keyed_table& b) {
  std::size_t differ = a.size() == b.size() ? 0 : 1;
  for (const std::uint64_t key : a.keys()) {
    const std::byte *in_a = nullptr, *in_b = nullptr;
    a.find(&key, 1, &in_a);
    b.find(&key, 1, &in_b);
    if (in_b == nullptr ||
        std::memcmp(in_a, in_b, static_cast<std::size_t>(keyed_format().stride_bytes())) != 0)
      ++differ;
  }
  return differ;
}

}  // namespace

TEST_CASE("named_rows: a hashed table is saved with its state and loaded into another, by its keys") {
  const folder there;
  const std::string path = there / "model.drt";
  keyed_table trained(keyed_format(), values_of_key), again(keyed_format(), values_of_key);
  fill_keyed(trained);
  dense_table<f32_rows> dense(3, f32_rows(2));
  std::memset(dense.view().data(), 1, dense.bytes());
  {
    const auto items = name_rows<std::uint64_t>("items", keyed_source(trained));
    CHECK(std::is_sorted(items.keys().begin(), items.keys().end()));
    const auto tables = items.tables();
    const const_named_table all[] = {tables[0], name_table("dense", dense.view()), tables[1]};
    REQUIRE(save_tables(path, all, {.step = 7, .numbers = {}}, {.block_bytes = 1000}).ok());
  }
  // Rows of other keys stay.
  const std::uint64_t other = 3;
  REQUIRE(again.insert(&other, 1).ok());
  {
    auto items = name_rows<std::uint64_t>("items", keyed_source(again), path);
    INFO((items ? std::string() : items.fault().message()));
    REQUIRE(items.ok());
    const auto tables = items.value().tables();
    const named_table all[] = {tables[0], tables[1], name_table("dense", dense.view())};
    const auto state = load_tables(path, all);
    REQUIRE(state.ok());
    CHECK(state.value().step == 7);
  }
  CHECK(again.size() == trained.size() + 1);
  CHECK(differing(trained, again) == 1);  // the number of rows
}

TEST_CASE("named_rows: what can't be loaded is refused, and the table is as before") {
  const folder there;
  const std::string path = there / "model.drt";
  keyed_table trained(keyed_format(), values_of_key), again(keyed_format(), values_of_key);
  fill_keyed(trained);
  REQUIRE(save_tables(path, std::as_const(*std::make_unique<named_rows<std::uint64_t, keyed_source>>(
                                              name_rows<std::uint64_t>("items", keyed_source(trained))))
                                .tables())
              .ok());
  const auto code_of = [&](const char* name, const std::string& file) {
    const auto rows = name_rows<std::uint64_t>(name, keyed_source(again), file);
    REQUIRE(!rows.ok());
    return rows.fault().code();
  };
  CHECK(code_of("users", path) == errc::shape_mismatch);
  CHECK(code_of("items", there / "none.drt") == errc::io_error);
  CHECK(again.size() == 0);
  again.admits = [](std::uint64_t key) { return key % 3 != 0; };
  CHECK(code_of("items", path) == errc::invalid_value);
  again.admits = {};
  again.fails_at = trained.keys()[8];
  CHECK(code_of("items", path) == errc::out_of_memory);

  // Other rows than those of the file.
  hashed_table<f32_rows> wider(
      f32_rows(keyed_width + 1, {.state_floats = 2}),
      [](std::uint64_t, float* values) { std::fill_n(values, keyed_width + 1, 0.0F); });
  auto rows = name_rows<std::uint64_t>("items", hashed_rows<f32_rows>(wider), path);
  REQUIRE(rows.ok());
  const auto tables = rows.value().tables();
  CHECK(load_tables(path, tables).code() == errc::shape_mismatch);

  std::filesystem::resize_file(path, 900);
  CHECK(code_of("items", path) == errc::invalid_value);
}

TEST_CASE("named_rows: a table without rows is saved and loaded") {
  const folder there;
  const std::string path = there / "model.drt";
  keyed_table none(keyed_format(), values_of_key), again(keyed_format(), values_of_key);
  const auto rows = name_rows<std::uint64_t>("items", keyed_source(none));
  REQUIRE(save_tables(path, rows.tables()).ok());
  auto found = name_rows<std::uint64_t>("items", keyed_source(again), path);
  REQUIRE(found.ok());
  CHECK(load_tables(path, found.value().tables()).ok());
  CHECK(again.size() == 0);
}
