// A file whose bytes are memory, found again after a restart: on a disk, on tmpfs, or on persistent memory
// (fsdax: application direct).
//
//   auto file = mapped_file::open("rows.map", "my rows", bytes).or_throw();  made where it is missing
//   ... file.data() is changed ...
//   file.close().or_throw();                                                 to the disk, marked as closed
//
//   file   | header, 4096 bytes: what it is, whether it is open for changes | data, at a multiple of 64 |
//
//   open     the mark "open for changes" is on the disk before a byte can change
//   close    the data are on the disk before the mark "closed" is
//
// A process that ends in between leaves the first mark: the next open() refuses the file, since whatever was
// being written may be torn; or takes it as it is, where it is told to (mapped_file_options). Of a process
// that is killed all stores are in the file; of a machine that stops some, unless flush() came after them.
//
// The pages are the file: whoever truncates it takes them away, and the process that touches one ends by
// SIGBUS. Calls here report a file that became shorter and touch no page of it. Not here: copies of a moment
// that was whole (checkpoint_folder.hpp).
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/memory/detail/mapped_header.hpp>
#include <deeprec/memory/detail/mapping.hpp>
#include <deeprec/memory/detail/page_report.hpp>
#include <deeprec/memory/mapping_options.hpp>
#include <deeprec/support/file_faults.hpp>
#include <deeprec/support/whole_file.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Options of a mapped_file.
struct mapped_file_options {
  enum class use : unsigned char {
    change,  ///< one process
    read,    ///< any number of processes, while none changes it. What is written reaches nobody
  };
  enum class missing : unsigned char { make, refuse };
  enum class unclosed : unsigned char {
    refuse,
    accept,  ///< data as they are: whatever was being written may be torn
  };
  use as = use::change;
  missing if_missing = missing::make;  ///< a file to read is never made
  unclosed if_unclosed = unclosed::refuse;
  mapping_options mapping = {};
};

/// The bytes of a file, mapped.
///
/// @threads the data as any memory; calls: one thread at a time
/// @error   its destructor does not close(): a file that was open for changes stays marked so
class mapped_file {
 public:
  /// Nothing is mapped.
  mapped_file() = default;

  /// Maps a file, and makes it where it is missing: with room for all bytes, which are zero.
  ///
  /// @param description what the data is; a file of another description, or of another length, is refused
  /// @post    to change: the file is locked for this object, and the mark is on the disk
  /// @cost    some system calls, a wait for the disk; with faults::at_once the pages
  /// @threads reentrant
  /// @error   io_error: the system's reason (a full disk, a folder, no permission, locked by another
  ///          process); invalid_value: another format, corrupted, truncated, not closed, a description of
  ///          more than 3904 bytes; unsupported: another byte order or version; shape_mismatch: another
  ///          description or length; out_of_memory. A file that could not be made in whole leaves nothing
  static result<mapped_file> open(const std::string& path, std::string_view description, index_t bytes,
                                  const mapped_file_options& options = {}) {
    return detail::on_file(path, "mapped_file::open", [&]() -> result<mapped_file> {
      if (bytes < 0 || bytes > most_size - index_t{header::bytes} ||
          description.size() > header::most_description)
        return detail::invalid("bytes must be from 0 to the largest file, and the description at most " +
                               std::to_string(header::most_description) + " bytes");
      mapped_file made;
      made.path_ = path;
      made.as_ = options.as;
      made.data_bytes_ = bytes;
      if (const auto done = made.open_or_make(description, options); !done) return done.fault();
      if (const auto done = made.map(options); !done) return done.fault();
      return {std::move(made)};
    });
  }

  /// Null where nothing is mapped.
  [[nodiscard]] std::byte* data() const noexcept {
    return memory_.data() == nullptr ? nullptr : memory_.data() + header::bytes;
  }
  [[nodiscard]] index_t bytes() const noexcept { return data() == nullptr ? 0 : data_bytes_; }
  /// Whether open() found the file; otherwise it made it.
  [[nodiscard]] bool found() const noexcept { return found_; }
  /// False where open() took a file that was not closed.
  [[nodiscard]] bool was_closed() const noexcept { return was_closed_; }

  /// Whether the file still has all of its bytes: a page that it lost ends the process that touches it.
  ///
  /// @cost    a system call
  /// @threads beside users of the data
  /// @error   io_error: it became shorter
  [[nodiscard]] result<void> check() const {
    return detail::on_file(path_, "mapped_file::check", [&] { return check_length(); });
  }
  /// Brings the data to the disk; on fsdax from the caches of the processor to the memory. The mark stays.
  ///
  /// @pre     no thread changes the data, or it doesn't matter which of its changes are there
  /// @cost    the disk's time
  /// @threads one thread at a time
  /// @error   io_error: the system's reason, or as check()
  [[nodiscard]] result<void> flush() const {
    return detail::on_file(path_, "mapped_file::flush", [&] { return flush_data(); });
  }
  /// Brings the data to the disk, marks the file as closed, and unmaps it; after a fault it is open as
  /// before.
  ///
  /// @pre     no thread uses the data
  /// @post    data() is null
  /// @cost    the disk's time
  /// @threads one thread
  /// @error   as flush()
  [[nodiscard]] result<void> close() {
    return detail::on_file(path_, "mapped_file::close", [&]() -> result<void> {
      if (data() == nullptr) return {};
      if (as_ == use::change) {
        if (auto done = flush_data(); !done) return done;
        if (auto done = mark(header::closed); !done) {
          static_cast<void>(mark(header::changing));
          return done;
        }
      }
      memory_ = {};
      file_ = {};
      return {};
    });
  }

  /// Queries the kernel for the kinds of pages that the file's mapping is on.
  ///
  /// @cost    reads /proc/self/smaps: some ms
  /// @threads thread-safe
  /// @error   none; pages stay 0 where /proc is missing
  [[nodiscard]] mapped_report report() const {
    if (data() == nullptr) return {};
    const auto first = reinterpret_cast<std::uintptr_t>(memory_.data());
    const detail::page_report pages = detail::pages_of([&](std::uintptr_t begin, std::uintptr_t end) {
      return begin < first + memory_.bytes() && first < end;
    });
    return {memory_.bytes(), pages.resident, pages.transparent_huge + pages.explicit_huge,
            memory_.is_direct() ? memory_.bytes() : 0};
  }

 private:
  using header = detail::mapped_header;
  using use = mapped_file_options::use;

  result<void> open_or_make(std::string_view description, const mapped_file_options& options) {
    const bool may_make =
        options.as == use::change && options.if_missing == mapped_file_options::missing::make;
    found_ = true;
    for (int tries = 0;; ++tries) {
      const int flags = (as_ == use::change ? O_RDWR : O_RDONLY) | O_NONBLOCK;  // must not wait for a pipe
      file_ = detail::open_at(AT_FDCWD, path_.c_str(), flags);
      if (file_.open()) break;
      if (errno == EISDIR) return status(errc::io_error, "is a directory");
      if (errno != ENOENT || !may_make || tries == 2) return detail::system_fault("cannot open");
      if (auto done = make(description); !done) return done;
    }
    struct stat facts{};
    if (::fstat(file_.get(), &facts) != 0) return detail::system_fault("cannot read its facts");
    if (S_ISDIR(facts.st_mode)) return status(errc::io_error, "is a directory");
    if (!S_ISREG(facts.st_mode)) return status(errc::io_error, "is not a regular file");
    if (::flock(file_.get(), (as_ == use::change ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return detail::system_fault("cannot lock it");
      return status(errc::io_error, "is open in another process, or twice in this one");
    }
    return read_header(description, options);
  }
  result<void> read_header(std::string_view description, const mapped_file_options& options) {
    struct stat facts{};  // again: under the lock
    if (::fstat(file_.get(), &facts) != 0) return detail::system_fault("cannot read its facts");
    header::block block{};
    const auto size = static_cast<std::uint64_t>(facts.st_size);
    const auto there = static_cast<std::size_t>((std::min)(size, std::uint64_t{header::bytes}));
    if (auto done = detail::read_at(file_.get(), 0, block.data(), there); !done) return done;
    const auto read = header::decode(block, there, size);
    if (!read) return read.fault();
    const header& is = read.value();
    if (is.description != description || is.data_bytes != static_cast<std::uint64_t>(data_bytes_))
      return detail::misfit("holds " + detail::in_quotes(is.description) + " in " +
                            std::to_string(is.data_bytes) + " bytes instead of " +
                            detail::in_quotes(description) + " in " + std::to_string(data_bytes_));
    was_closed_ = is.state == header::closed;
    if (!was_closed_ && options.if_unclosed == mapped_file_options::unclosed::refuse)
      return detail::invalid(
          "was not closed: what changed it ended first, and what was being written may be torn; restore a "
          "checkpoint, or take it as it is (unclosed::accept)");
    return {};
  }
  // Under a temporary name until it is whole. Another process may have made it meanwhile.
  result<void> make(std::string_view description) {
    detail::replacement_file file;
    if (auto done = file.open(path_); !done) return done;
    struct stat facts{};
    if (::stat(path_.c_str(), &facts) == 0) return {};
    const header first{static_cast<std::uint64_t>(data_bytes_), std::string(description)};
    const header::block block = first.encode();
    if (auto done = file.write(block.data(), block.size()); !done) return done;
    if (auto done = file.reserve(static_cast<std::uint64_t>(data_bytes_)); !done) return done;
    if (auto done = file.commit(); !done) return done;
    found_ = false;
    return {};
  }
  result<void> map(const mapped_file_options& options) {
    auto mapped = detail::mapping::of_file(
        file_.get(), 0, header::bytes + static_cast<std::size_t>(data_bytes_), as_ == use::read);
    if (!mapped) return mapped.fault();
    if (options.mapping.size == mapping_options::pages::huge) mapped.value().want_huge_pages();
    if (options.mapping.when == mapping_options::faults::at_once) {
      if (auto done = mapped.value().fault_in(as_ == use::change); !done) return done;
    }
    if (as_ == use::change) {
      if (auto done = mark(header::changing); !done) {
        if (was_closed_) static_cast<void>(mark(header::closed));
        return done;
      }
    }
    memory_ = std::move(mapped).value();
    return {};
  }
  // By a write: a store to a page that the file lost would end the process.
  [[nodiscard]] result<void> mark(std::uint64_t state) const {
    if (auto done = detail::write_at(file_.get(), header::state_at,
                                     reinterpret_cast<const std::byte*>(&state), sizeof(state));
        !done)
      return done;
    if (::fdatasync(file_.get()) != 0) return detail::system_fault("cannot bring its mark to the disk");
    return {};
  }
  [[nodiscard]] result<void> check_length() const {
    if (data() == nullptr) return {};
    struct stat facts{};
    if (::fstat(file_.get(), &facts) != 0) return detail::system_fault("cannot read its facts");
    const index_t whole = index_t{header::bytes} + data_bytes_;
    if (facts.st_size >= whole) return {};
    return fault(errc::io_error, "became shorter while it was mapped: ends at byte " +
                                     std::to_string(facts.st_size) + " of " + std::to_string(whole));
  }
  [[nodiscard]] result<void> flush_data() const {
    if (data() == nullptr || as_ == use::read) return {};
    if (auto done = check_length(); !done) return done;
    return memory_.flush();
  }

  std::string path_;
  detail::descriptor file_;
  detail::mapping memory_;
  index_t data_bytes_ = 0;
  use as_ = use::change;
  bool found_ = false;
  bool was_closed_ = true;
};

}}  // namespace deeprec::DEEPREC_ABI
