// Files whose bytes are memory: found again, refused with the reason where something is wrong, and never a
// crash where a status can be.
#include <deeprec/memory/mapped_file.hpp>

#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/hash.hpp>

#include "support/children.hpp"
#include "support/temporary_folder.hpp"

using namespace deeprec;
using namespace deeprec_test;
using options = mapped_file_options;

namespace {

constexpr index_t size = 20'000;
constexpr const char* what = "numbers of a test";

result<mapped_file> open(const std::string& path, const options& o = {}) {
  return mapped_file::open(path, what, size, o);
}
constexpr options to_read{.as = options::use::read};
constexpr options as_it_is{.if_unclosed = options::unclosed::accept};

/// A closed file whose bytes are their place.
void make(const std::string& path) {
  auto file = open(path).or_throw();
  for (index_t k = 0; k < size; ++k) file.data()[k] = static_cast<std::byte>(k * 7);
  file.close().or_throw();
}
bool is_whole(const mapped_file& file) {
  for (index_t k = 0; k < size; ++k)
    if (file.data()[k] != static_cast<std::byte>(k * 7)) return false;
  return true;
}
bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

template <class Number>
void put(std::string& bytes, std::size_t at, Number value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}
/// Makes the header's checksum right again.
void seal(std::string& bytes) { put(bytes, 3968, hash_bytes(std::string_view(bytes).substr(0, 3968))); }

/// The folder of a tmpfs, or any.
std::filesystem::path fast_folder() {
  return std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path();
}

}  // namespace

TEST_CASE("mapped_file: a file is made with zeros, and found with its bytes") {
  const temporary_folder folder;
  const std::string path = folder.path() + "/a";
  for (const index_t bytes : {index_t{0}, index_t{1}, index_t{4096}, index_t{5'000'000}}) {
    CAPTURE(bytes);
    {
      auto file = mapped_file::open(path, "", bytes).or_throw();
      CHECK_FALSE(file.found());
      CHECK(file.was_closed());
      CHECK(file.bytes() == bytes);
      CHECK(reinterpret_cast<std::uintptr_t>(file.data()) % 64 == 0);
      CHECK(std::all_of(file.data(), file.data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
      if (bytes > 0) file.data()[bytes - 1] = std::byte{42};
      CHECK(file.check().ok());
      CHECK(file.flush().ok());
      CHECK(file.close().ok());
      CHECK(file.data() == nullptr);
      CHECK(file.bytes() == 0);
      CHECK(file.close().ok());
      CHECK(file.flush().ok());
      CHECK(file.check().ok());
      CHECK(file.report().mapped == 0);
    }
    CHECK(folder.names() == std::vector<std::string>{"a"});
    CHECK(std::filesystem::file_size(path) == static_cast<std::uintmax_t>(4096 + bytes));
    for (const options& o : {options{}, to_read}) {
      auto file = mapped_file::open(path, "", bytes, o).or_throw();
      CHECK(file.found());
      CHECK((bytes == 0 || file.data()[bytes - 1] == std::byte{42}));
      CHECK(file.close().ok());
    }
    std::filesystem::remove(path);
  }
}

TEST_CASE("mapped_file: what is read is never changed by who reads it") {
  const temporary_folder folder;
  const std::string path = folder.path() + "/a";
  make(path);
  const std::string before = bytes_of(path);
  auto file = open(path, to_read).or_throw();
  CHECK(is_whole(file));
  std::fill_n(file.data(), size, std::byte{1});
  CHECK(file.flush().ok());
  auto other = open(path, to_read).or_throw();  // at the same time
  CHECK(is_whole(other));
  CHECK(file.close().ok());
  CHECK(other.close().ok());
  CHECK(bytes_of(path) == before);
  CHECK(is_whole(open(path).or_throw()));
}

TEST_CASE("mapped_file: a file that was not closed is refused, or taken as it is") {
  const temporary_folder folder;
  const std::string path = folder.path() + "/a";
  make(path);
  const int ended = in_child([&] {
    auto file = open(path).or_throw();
    file.data()[7] = std::byte{99};
    ::raise(SIGKILL);
    return 0;
  });
  REQUIRE(ended == 128 + SIGKILL);
  for (const options& o : {options{}, to_read}) {
    const auto refused = open(path, o);
    REQUIRE(refused.code() == errc::invalid_value);
    CHECK(contains(refused.message(), "/a: "));
    CHECK(contains(refused.message(), "was not closed"));
  }
  auto file = open(path, as_it_is).or_throw();
  CHECK_FALSE(file.was_closed());
  CHECK(file.data()[7] == std::byte{99});  // of a process that is killed nothing is lost
  file.data()[7] = std::byte{49};
  CHECK(is_whole(file));
  // Neither an end without close() nor a move closes it.
  {
    const mapped_file gone = std::move(file);
  }
  CHECK(open(path).code() == errc::invalid_value);
  file = open(path, as_it_is).or_throw();
  CHECK(file.close().ok());
  CHECK(open(path).or_throw().was_closed());
}

TEST_CASE("mapped_file: one object changes a file, or several read it") {
  const temporary_folder folder;
  const std::string path = folder.path() + "/a";
  make(path);
  const auto is_locked = [&](const options& o) {
    const auto refused = open(path, o);
    return refused.code() == errc::io_error && contains(refused.message(), "is open in another process");
  };
  {
    auto file = open(path).or_throw();
    CHECK(is_locked({}));
    CHECK(is_locked(to_read));
    CHECK(in_child([&] { return is_locked({}) && is_locked(to_read) ? 0 : 1; }) == 0);
    CHECK(file.close().ok());
  }
  auto reader = open(path, to_read).or_throw();
  CHECK(is_locked({}));
  CHECK(open(path, to_read).ok());
  CHECK(reader.close().ok());
  CHECK(open(path).ok());
}

TEST_CASE("mapped_file: other files are refused, with the reason, and stay as they are") {
  const temporary_folder folder;
  const std::string path = folder.path() + "/a";
  make(path);
  const std::string good = bytes_of(path);
  const auto refusal = [&](const std::string& bytes) {
    write_bytes(path, bytes);
    const auto refused = open(path, as_it_is);
    CHECK_FALSE(refused.ok());
    CHECK(bytes_of(path) == bytes);
    CHECK(contains(refused.message(), "/a: "));
    CHECK(contains(refused.message(), "mapped_file::open: "));
    return std::pair(refused.code(), refused.message());
  };
  const auto is = [&](const std::string& bytes, errc code, const char* why) {
    const auto [is_code, text] = refusal(bytes);
    CAPTURE(text);
    CHECK(is_code == code);
    CHECK(contains(text, why));
  };
  is("", errc::invalid_value, "an empty file");
  is("no magic", errc::invalid_value, "no mapped file");
  is(std::string(24'096, 'x'), errc::invalid_value, "no mapped file");
  is("\x89"
     "DRT\r\n\x1a\n" +
         good.substr(8),
     errc::invalid_value, "no mapped file");  // a file of tables
  is(good.substr(0, 3), errc::invalid_value, "truncated: ends at byte 3 of 4096");
  is(good.substr(0, 4095), errc::invalid_value, "truncated: ends at byte 4095 of 4096");
  is(good.substr(0, 4096), errc::invalid_value, "truncated: ends at byte 4096 of 24096");
  is(good.substr(0, 24'095), errc::invalid_value, "truncated: ends at byte 24095 of 24096");
  is(good + 'x', errc::invalid_value, "has 24097 bytes instead of 24096");

  std::string other = good;
  put(other, 8, std::uint32_t{0x04030201});
  is(other, errc::unsupported, "other byte order");
  seal(other);
  is(other, errc::unsupported, "other byte order");
  put(other, 8, std::uint32_t{7});
  is(other, errc::invalid_value, "byte order at byte 8 is none");

  other = good;
  put(other, 12, std::uint32_t{2});
  seal(other);
  is(other, errc::unsupported, "version 2 of the format (byte 12); this reads 1");
  other = good;
  put(other, 16, std::uint64_t{8192});
  seal(other);
  is(other, errc::unsupported, "version");
  other = good;
  put(other, 32, std::uint32_t{3905});
  seal(other);
  is(other, errc::invalid_value, "a length can't be");
  other = good;
  put(other, 24, std::uint64_t{0} - 4096);
  seal(other);
  is(other, errc::invalid_value, "a length can't be");
  other = good;
  put(other, 24, std::uint64_t{1} << 40);
  seal(other);
  is(other, errc::invalid_value, "truncated");
  other = good;
  put(other, 4032, std::uint64_t{0});
  is(other, errc::invalid_value, "the state at byte 4032 is none");

  // Any changed byte of the header.
  for (std::size_t at = 0; at < 4096; at += at < 128 || at >= 3900 ? 1 : 97) {
    if ((at >= 3976 && at < 4032) || at >= 4040) continue;  // nothing
    CAPTURE(at);
    other = good;
    other[at] = static_cast<char>(other[at] ^ 0x10);
    CHECK_FALSE(refusal(other).second.empty());
  }
  write_bytes(path, good);
  CHECK(is_whole(open(path).or_throw()));
}

TEST_CASE("mapped_file: another description or length is refused, and says both") {
  const temporary_folder folder;
  const std::string path = folder.path() + "/a";
  make(path);
  for (const auto& [description, bytes] :
       {std::pair(std::string("others"), size), std::pair(std::string(what), size + 1)}) {
    const auto refused = mapped_file::open(path, description, bytes);
    CHECK(refused.code() == errc::shape_mismatch);
    CHECK(contains(refused.message(), "holds \"numbers of a test\" in 20000 bytes instead of \"" +
                                          description + "\" in " + std::to_string(bytes)));
  }
  for (const index_t bytes : {index_t{-1}, INT64_MIN, INT64_MAX})
    CHECK(mapped_file::open(path, what, bytes).code() == errc::invalid_value);
  CHECK(mapped_file::open(folder.path() + "/b", std::string(3905, 'x'), 1).code() == errc::invalid_value);
  auto longest = mapped_file::open(folder.path() + "/b", std::string(3904, 'x'), 1).or_throw();
  CHECK(longest.close().ok());
  CHECK(mapped_file::open(folder.path() + "/b", std::string(3904, 'x'), 1).ok());
  CHECK(is_whole(open(path).or_throw()));
}

TEST_CASE("mapped_file: paths that are no file") {
  const temporary_folder folder;
  const auto is = [&](const std::string& path, const options& o, const char* why) {
    const auto refused = open(path, o);
    CAPTURE(refused.message());
    CHECK(refused.code() == errc::io_error);
    CHECK(contains(refused.message(), path));
    CHECK(contains(refused.message(), why));
  };
  const std::string fifo = folder.path() + "/fifo", none = folder.path() + "/none";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  std::filesystem::create_symlink(none, folder.path() + "/dangling");
  for (const options& o : {options{}, to_read}) {
    is(folder.path(), o, "is a directory");
    is(fifo, o, "is not a regular file");
    is("/dev/null", o, "is not a regular file");
    is(none + "/a", o, "No such file");
  }
  is(none, to_read, "No such file");
  is(none, {.if_missing = options::missing::refuse}, "No such file");
  is("", {}, "");
  is(none + "/", {}, "");
  CHECK(folder.names() == std::vector<std::string>{"dangling", "fifo"});
}

TEST_CASE(
    "mapped_file: a file that may not be written can be read, and the fault says why it can't be changed") {
  const temporary_folder folder(fast_folder());
  const std::string path = folder.path() + "/a";
  make(path);
  REQUIRE(::chmod(path.c_str(), 0444) == 0);
  REQUIRE(::chmod(folder.path().c_str(), 0555) == 0);
  const int ended = in_child([&] {
    if (::geteuid() == 0 && ::setuid(65534) != 0) return 10;  // modes don't bind the superuser
    const auto refused = open(path);
    if (refused.code() != errc::io_error || !contains(refused.message(), "Permission denied")) return 1;
    const auto missing = open(folder.path() + "/b");
    if (missing.code() != errc::io_error || !contains(missing.message(), "Permission denied")) return 2;
    auto file = open(path, to_read);
    return file.ok() && is_whole(file.value()) && file.value().close().ok() ? 0 : 3;
  });
  REQUIRE(::chmod(folder.path().c_str(), 0755) == 0);
  if (ended == 10) {
    MESSAGE("this process can't become another user: not tested");
  } else {
    CHECK(ended == 0);
  }
}

TEST_CASE("mapped_file: a file that becomes shorter while it is mapped is a status at every call") {
  const temporary_folder folder;
  const std::string path = folder.path() + "/a";
  make(path);
  for (const off_t left : {off_t{24'095}, off_t{4096}, off_t{100}, off_t{0}}) {
    CAPTURE(left);
    auto file = open(path).or_throw();
    const std::string before = bytes_of(path);
    REQUIRE(::truncate(path.c_str(), left) == 0);
    for (const auto& done : {file.check(), file.flush(), file.close()}) {
      CHECK(done.code() == errc::io_error);
      CHECK(contains(done.message(), "became shorter while it was mapped: ends at byte " +
                                         std::to_string(left) + " of 24096"));
    }
    CHECK(file.data() != nullptr);
    CHECK(std::filesystem::file_size(path) == static_cast<std::uintmax_t>(left));
    // Longer again: what was cut off is lost, and the object lives.
    write_bytes(path, before);
    CHECK(file.check().ok());
    CHECK(file.close().ok());
    make(path);
  }
  auto reader = open(path, to_read).or_throw();
  REQUIRE(::truncate(path.c_str(), 5000) == 0);
  CHECK(reader.check().code() == errc::io_error);
  CHECK(reader.close().ok());
}

TEST_CASE("mapped_file: where no call is in between, a page that is lost ends the process by SIGBUS") {
  const temporary_folder folder;
  const std::string path = folder.path() + "/a";
  make(path);
  CHECK(in_child([&] {
          std::signal(SIGBUS, SIG_DFL);  // sanitizers have a handler
          auto file = open(path).or_throw();
          if (::truncate(path.c_str(), 4096) != 0) return 1;
          const volatile std::byte* const lost = file.data() + size - 1;
          return static_cast<int>(*lost) * 0;
        }) == 128 + SIGBUS);
}

TEST_CASE("mapped_file: a disk that is too full for all bytes is a fault when the file is made") {
  const temporary_folder folder;
  const std::string path = folder.path() + "/a";
  // A limit on the size of files stands for a full disk.
  const int ended = in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 10;
    const auto refused = mapped_file::open(path, what, 2 << 20);
    if (refused.code() != errc::io_error || !contains(refused.message(), "cannot reserve")) return 1;
    auto made = mapped_file::open(path, what, 1 << 19);
    return made.ok() && made.value().close().ok() ? 0 : 2;
  });
  CHECK(ended == 0);
  CHECK(folder.names() == std::vector<std::string>{"a"});
}

TEST_CASE("mapped_file: a full tmpfs, with and without huge pages") {
  const temporary_folder folder;
  std::filesystem::create_directory(folder.path() + "/small");
  const std::string small = folder.path() + "/small";
  for (const char* const pages : {"size=16m,huge=never", "size=16m,huge=always"}) {
    CAPTURE(std::string(pages));
    if (::mount("none", small.c_str(), "tmpfs", 0, pages) != 0) {
      MESSAGE("this process may not mount a tmpfs: not tested");
      return;
    }
    const auto refused = mapped_file::open(small + "/a", what, 20 << 20);
    CHECK(refused.code() == errc::io_error);
    CHECK(contains(refused.message(), "No space left on device"));
    CHECK(std::filesystem::is_empty(small));
    {
      auto file = mapped_file::open(small + "/a", what, 12 << 20,
                                    {.mapping = {.when = mapping_options::faults::at_once}});
      REQUIRE(file.ok());
      std::fill_n(file.value().data(), 12 << 20, std::byte{1});
      const mapped_report now = file.value().report();
      CHECK(now.resident >= 12U << 20);
      CHECK(now.direct == 0);
      if (std::string(pages).find("never") != std::string::npos) CHECK(now.huge == 0);
      MESSAGE("huge pages on tmpfs, " << std::string(pages) << ": " << (now.huge >> 20) << " MB");
      CHECK(file.value().close().ok());
    }
    CHECK(::umount(small.c_str()) == 0);
  }
}

TEST_CASE("mapped_file: pages are there at once where that is asked for") {
  const temporary_folder folder;
  for (const options::use as : {options::use::change, options::use::read}) {
    for (const auto when : {mapping_options::faults::at_first_use, mapping_options::faults::at_once}) {
      const std::string path = folder.path() + "/a";
      auto file = mapped_file::open(path, what, 8 << 20, {.as = as, .mapping = {.when = when}}).or_throw();
      const mapped_report now = file.report();
      CHECK(now.mapped == (8 << 20) + 4096);
      CHECK((now.resident == now.mapped || when == mapping_options::faults::at_first_use));
      CHECK(now.huge <= now.resident);
      CHECK(file.close().ok());
    }
  }
}
