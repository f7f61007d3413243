// Text, files of tables and the machine's facts: what a review of data/, table files and fuzz targets found.
#include <doctest/doctest.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include <deeprec/core/isa.hpp>
#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/feasign_format.hpp>
#include <deeprec/data/libsvm_format.hpp>
#include <deeprec/embedding/files/table_file.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "data/support.hpp"
#include "support/children.hpp"
#include "support/sanitizers.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

/// An empty folder that goes away again.
struct folder {
  folder() {
    std::string name = (std::filesystem::temp_directory_path() / "deeprec_XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;
  ~folder() { std::filesystem::remove_all(path); }
  [[nodiscard]] std::string operator/(const std::string& name) const { return path + '/' + name; }
  std::string path;
};

}  // namespace

TEST_CASE("e05: a thousand empty files need no more descriptors than one") {
  const folder here;
  std::vector<std::string> paths;
  for (int i = 0; i <= 100; ++i) {
    paths.push_back(here / ("part-" + std::to_string(i)));
    std::ofstream(paths.back()) << (i == 100 ? "1 3:0.5\n" : "");
  }
  CHECK(in_child([&] {
          const rlimit limit{32, 32};
          if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
          const inline_executor executor;
          auto reader = read_files(executor, libsvm_format{}, paths);
          if (!reader) return 3;
          sparse_batch batch;
          const auto rows = reader.value().next(batch, 10);
          if (!rows) std::puts(rows.fault().message().c_str());
          return rows && rows.value() == 1 ? 0 : 1;
        }) == 0);
}

TEST_CASE("e10: text in memory without a line end is looked at once, not once for each chunk") {
  CHECK(in_child([] {
          const std::string last = "\n1 3:0.5\n";
          for (const malformed policy : {malformed::fault, malformed::drop}) {
            const due_text due(std::string((100 << 12) - last.size(), 'x') + last, 4096, 100);
            const due_executor executor{&due};
            const reader_options options{
                .on_malformed = policy, .chunk_bytes = 4096, .chunks_in_flight = 1, .longest_line = 100};
            const outcome got =
                read_all(read_text(executor, libsvm_format{}, due.view(), options).value(), 10);
            const bool right = policy == malformed::drop
                                   ? due.chunks() == 100 && got.rows.size() == 1 && got.skipped == 1
                                   : due.chunks() == 1 && !got.fault.empty();
            if (!right) return 1;
          }
          return 0;
        }) == 0);
}

TEST_CASE("e11: a number is too large or too small by its magnitude, whatever its exponent says") {
  const std::string zeros(400, '0');
  sparse_batch batch;
  const auto weight_of = [&](const std::string& number) {
    const auto parsed = parse_text(libsvm_format{}, "1 5:" + number + "\n", batch);
    return parsed ? batch.feature(0).weights()[0] : std::numeric_limits<float>::quiet_NaN();
  };
  const auto fault = parse_text(libsvm_format{}, "1 5:1" + zeros + "e-10\n", batch);
  REQUIRE_FALSE(fault);
  CHECK(fault.fault().message() == "<text>:1:5: malformed text: the number is too large");
  CHECK(weight_of("0." + zeros + "1") == 0.0F);
  CHECK(weight_of("0." + zeros + "1e+500") != weight_of("0." + zeros + "1e+500"));  // 1e99: no float
  CHECK(weight_of("0." + zeros + "1e+401") == 1.0F);
  CHECK(weight_of("1" + zeros + "e-400") == 1.0F);
  CHECK(weight_of("1e-99999999999999999999") == 0.0F);
  CHECK(weight_of("0." + std::string(700'000, '0') + "1e700001") == 1.0F);
}

TEST_CASE("e13: what a header claims of its length is not allocated before it is known to be true") {
  const folder here;
  constexpr std::uint64_t size = std::uint64_t{4} << 30;
  for (const std::uint32_t numbers : {std::uint32_t{0}, ~std::uint32_t{0}}) {
    std::byte start[64] = {};
    const auto put = [&](std::size_t at, auto v) { std::memcpy(start + at, &v, sizeof v); };
    std::memcpy(start, detail::table_file_magic, 8);
    put(8, detail::table_file_byte_order);
    put(12, detail::table_file_version);
    put(16, size - 8);
    put(24, size);
    put(32, std::uint64_t{1} << 20);
    put(52, numbers);
    put(56, detail::hash_of(start, 56));
    const std::string path = here / "bomb";
    std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(start), 64);
    REQUIRE(::truncate(path.c_str(), static_cast<off_t>(size)) == 0);
#if DEEPREC_TEST_SANITIZED
    if (numbers != 0) continue;  // a sanitizer's own memory is beyond any limit
#endif
    CAPTURE(numbers);
    CHECK(in_child([&] {
#if !DEEPREC_TEST_SANITIZED
            const rlimit limit{std::uint64_t{2} << 30, std::uint64_t{2} << 30};
            if (setrlimit(RLIMIT_AS, &limit) != 0) return 2;
#endif
            std::optional<result<table_file_info>> described;
            std::optional<result<training_state>> filled;
            try {
              described = describe_file(path);
              filled = load_tables(path, {});
            } catch (const std::bad_alloc&) {
              return 4;
            }
            const auto& info = *described;
            const auto& loaded = *filled;
            if (info || loaded || info.fault().code() != loaded.fault().code()) return 1;
            // Without entries the header has 72 bytes; with so many the length may be true.
            const errc expected = numbers == 0 ? errc::invalid_value : errc::out_of_memory;
            return info.fault().code() == expected ? 0 : 3;
          }) == 0);
  }
}

TEST_CASE("leftover: what a killed saver left gives the new file neither owner nor mode nor content") {
  const folder here;
  dense_table<f32_rows> table(2, f32_rows(2));
  const const_named_table parts[] = {name_table("t", table.view())};
  std::ofstream(here / "precious") << "as it was";
  // The leftover is another name of a file that somebody keeps, and anybody may write it.
  REQUIRE(::link((here / "precious").c_str(), (here / "tables.saving").c_str()) == 0);
  REQUIRE(::chmod((here / "precious").c_str(), 0666) == 0);
  if (::geteuid() == 0) REQUIRE(::chown((here / "precious").c_str(), 65534, 65534) == 0);
  const mode_t mask = ::umask(077);
  const auto saved = save_tables(here / "tables", parts);
  ::umask(mask);
  REQUIRE(saved);
  struct stat facts{};
  REQUIRE(::stat((here / "tables").c_str(), &facts) == 0);
  CHECK((facts.st_mode & 0777U) == 0600);
  CHECK(facts.st_uid == ::geteuid());
  CHECK(facts.st_nlink == 1);
  CHECK_FALSE(std::filesystem::exists(here / "tables.saving"));
  CHECK(content_of(here / "precious") == "as it was");
}

TEST_CASE("affinity: a system with more than 1024 processors is not one with a single processor") {
  const auto cpus = detail::cpus_of_affinity([](std::size_t bytes, cpu_set_t* mask) {
    if (8 * bytes < 2048) {
      errno = EINVAL;
      return -1;
    }
    for (const std::size_t cpu : {7U, 1024U, 2047U}) CPU_SET_S(cpu, bytes, mask);
    return 0;
  });
  CHECK(cpus == std::vector<int>{7, 1024, 2047});
}

TEST_CASE("isa: a machine without F16C runs no region that is compiled for it") {
  detail::cpu_features cpu{.avx2 = true, .fma = true, .bmi2 = true};
  CHECK(detail::best_isa_of(cpu) == isa::portable);
  cpu.f16c = true;
  CHECK(detail::best_isa_of(cpu) == isa::avx2);
}

TEST_CASE("n03: the next epoch's reader takes the place of one that holds the begin of a line") {
  // Under a sanitizer, or where freed memory is overwritten (tests/data/batch_reader_test.cpp), the old text
  // was seen to be freed through a resource that was gone.
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "1 3:0.5 17:1\n";
  const temporary_file file(text);
  const inline_executor here;
  const auto make = [&] {
    return read_stream(here, libsvm_format{}, "stream", std::make_unique<file_stream>(file.path()),
                       {.chunk_bytes = 100, .chunks_in_flight = 2})
        .or_throw();
  };
  sparse_batch batch;
  auto reader = make();
  for (int epoch = 0; epoch < 3; ++epoch) {
    CHECK(reader.next(batch, 10).or_throw() == 10);
    reader = make();
  }
}

TEST_CASE("slot_order_silent: PaddleRec's rows of slot:feasign are no feasign:slot") {
  feasign_format format(feasign_format::slots(1, 26));
  format.label_fields = 1;
  sparse_batch batch;
  const auto parsed = parse_text(format, "0 1:737395 2:210498 3:903564 4:286224\n", batch);
  REQUIRE_FALSE(parsed);
  CHECK(parsed.fault().place().line == 1);
  CHECK(parsed.fault().message().find("Fix: pairs = slot_feasign") != std::string::npos);
}

TEST_CASE("stream_fault_withheld: what has arrived in a pipe is delivered while the pipe stays open") {
  CHECK(in_child(
            [] {
              thread_pool pool({.threads = 2});
              for (const char* first : {"", "bad line\n"}) {
                int ends[2];
                if (::pipe(ends) != 0) return 2;
                std::string text = first;
                for (int i = 0; i < 1000; ++i) text += "1 3:0.5 17:1\n";
                if (::write(ends[1], text.data(), text.size()) != static_cast<ssize_t>(text.size())) return 3;
                auto reader =
                    read_stream(pool, libsvm_format{}, "pipe", std::make_unique<file_stream>(ends[0]))
                        .or_throw();
                sparse_batch batch;
                const auto got = reader.next(batch, 10);
                if (*first == '\0' ? !got || got.value() != 10 : got || got.fault().place().line != 1)
                  return 1;
                ::close(ends[1]);
              }
              // A line without an end, of which no more is read than its limit.
              auto reader = read_stream(pool, libsvm_format{}, "zeros",
                                        std::make_unique<file_stream>("/dev/zero"), {.longest_line = 1 << 20})
                                .or_throw();
              sparse_batch batch;
              const auto got = reader.next(batch, 10);
              return !got && got.fault().place().line == 1 ? 0 : 4;
            },
            60) == 0);
}
