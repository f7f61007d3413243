// One mapping of a file, a device or anonymous memory, at a multiple of 2 MB so that it can be on huge pages.
//
//   map_aligned     2 MB more than asked for; the ends are given back
//   mapping         the same with a file in its place; faulted in, flushed, unmapped
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/support/whole_file.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

inline constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

constexpr std::size_t whole_huge_pages(std::size_t bytes) noexcept {
  return (bytes + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
}

/// Fresh memory at a multiple of 2 MB, or MAP_FAILED. mmap aligns to 4 KB: asks for one huge page more and
/// gives the ends back.
/// @pre size is a multiple of the page size, and sums with it don't wrap
inline void* map_aligned(std::size_t size) noexcept {
  const std::size_t padded = size + huge_page_bytes;
  void* const raw = ::mmap(nullptr, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return raw;
  const auto begin = reinterpret_cast<std::uintptr_t>(raw);
  const std::uintptr_t aligned = whole_huge_pages(begin);
  if (aligned > begin) ::munmap(raw, aligned - begin);
  const std::size_t tail = begin + padded - (aligned + size);
  if (tail > 0) ::munmap(reinterpret_cast<void*>(aligned + size), tail);
  return reinterpret_cast<void*>(aligned);
}

/// @threads one thread changes it
class mapping {
 public:
  mapping() = default;
  mapping(mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        is_direct_(other.is_direct_) {}
  mapping& operator=(mapping&& other) noexcept {
    mapping moved(std::move(other));
    std::swap(data_, moved.data_);
    std::swap(bytes_, moved.bytes_);
    std::swap(is_direct_, moved.is_direct_);
    return *this;
  }
  ~mapping() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }

  /// Of a file or a device: MAP_SHARED, with MAP_SYNC where stores reach persistent memory (DAX); or
  /// MAP_PRIVATE: what is written reaches nobody.
  /// @pre offset is a multiple of the page size
  static result<mapping> of_file(int file, std::uint64_t offset, std::size_t bytes, bool is_private) {
    mapping made;
    if (const auto done = made.place(bytes); !done) return done.fault();
    const auto at = static_cast<off_t>(offset);
    const int way = possible_way(file, at, (std::min)(made.bytes_, huge_page_bytes), is_private);
    if (way == 0) return system_fault("cannot map it");
    made.is_direct_ = way != MAP_SHARED && way != MAP_PRIVATE;
    if (::mmap(made.data_, made.bytes_, access, way | MAP_FIXED, file, at) == MAP_FAILED) {
      const fault why = system_fault("cannot map " + std::to_string(bytes) + " bytes");
      made.data_ = nullptr;  // whether its place is still mapped is not known, and another thread may have it
      return why;
    }
    return {std::move(made)};
  }
  static result<mapping> of_memory(std::size_t bytes) {
    mapping made;
    if (const auto done = made.place(bytes); !done) return done.fault();
    return {std::move(made)};
  }

  [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// Whether stores reach persistent memory without a page cache.
  [[nodiscard]] bool is_direct() const noexcept { return is_direct_; }

  /// Asks for huge pages; whether there are any, the kernel and the file system decide.
  void want_huge_pages() const noexcept { ::madvise(data_, bytes_, MADV_HUGEPAGE); }

  /// Makes all pages present, to be written where will_write. Before Linux 5.14 by touching them, which ends
  /// the process where a page can't be had; since then that is a fault: io_error, out_of_memory.
  [[nodiscard]] result<void> fault_in(bool will_write) const {
    constexpr int populate_read = 22, populate_write = 23;  // MADV_POPULATE_..., which older headers lack
    while (::madvise(data_, bytes_, will_write ? populate_write : populate_read) != 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      if (errno == EINVAL) return touch(will_write), result<void>();
      if (errno == ENOMEM) return status(errc::out_of_memory, "memory for its pages was refused");
      return system_fault("some of its bytes can't be read or written");
    }
    return {};
  }
  /// Brings what was written to the file: to the disk, or through the caches of the processor on DAX.
  [[nodiscard]] result<void> flush() const {
    if (::msync(data_, bytes_, MS_SYNC) != 0) return system_fault("cannot bring it to the disk");
    return {};
  }

 private:
  static constexpr int access = PROT_READ | PROT_WRITE;

  // Flags of mmap with which the file can be mapped: tried elsewhere, since a MAP_FIXED that fails may leave
  // a hole. 0, and errno, where there are none.
  static int possible_way(int file, off_t offset, std::size_t bytes, bool is_private) noexcept {
    const auto works = [&](int way) {
      void* const tried = ::mmap(nullptr, bytes, access, way, file, offset);
      if (tried == MAP_FAILED) return false;
      ::munmap(tried, bytes);
      return true;
    };
    if (is_private) return works(MAP_PRIVATE) ? MAP_PRIVATE : 0;
#if defined(MAP_SYNC) && defined(MAP_SHARED_VALIDATE)
    if (works(MAP_SHARED_VALIDATE | MAP_SYNC)) return MAP_SHARED_VALIDATE | MAP_SYNC;
#endif
    return works(MAP_SHARED) ? MAP_SHARED : 0;
  }
  result<void> place(std::size_t bytes) {
    constexpr std::size_t most = static_cast<std::size_t>(-1) / 2;  // so that no sum wraps
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    if (bytes > most) return status(errc::out_of_memory, "so many bytes fit no address space");
    const std::size_t size = (bytes + page - 1) / page * page;
    void* const placed = map_aligned(size == 0 ? page : size);
    if (placed == MAP_FAILED) return system_fault("cannot map " + std::to_string(bytes) + " bytes");
    data_ = placed;
    bytes_ = size == 0 ? page : size;
    return {};
  }
  void touch(bool will_write) const noexcept {
    auto* const first = static_cast<volatile char*>(data_);
    for (std::size_t at = 0; at < bytes_; at += 4096) {
      const char value = first[at];
      if (will_write) first[at] = value;
    }
  }

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool is_direct_ = false;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
