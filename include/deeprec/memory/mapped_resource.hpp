// Memory for tables beside plain RAM: of a NUMA node, of a file, of a DAX device. For more rows than RAM
// holds. What is in it is lost with the process; what is found again: mapped_file.hpp.
//
//   auto slow = mapped_resource::on_node(1).or_throw();               persistent memory as a node (KMEM DAX)
//   auto slow = mapped_resource::in_folder("/mnt/pmem").or_throw();   a file; on fsdax without a page cache
//   auto slow = mapped_resource::on_device("/dev/dax0.0").or_throw();
//
//   dense_table<f32_rows> table(rows, 64, slow.get());
//   fallback_resource memory(&budget, slow.get(), std::size_t{256} << 30);      RAM first
//
//   allocate ─ 1 MB and more ─> a mapping at a multiple of 2 MB
//            └ smaller ─> upstream
//
// Persistent memory in memory mode is RAM to the system, and needs nothing of this.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/memory/detail/dax_device.hpp>
#include <deeprec/memory/detail/mapped_ranges.hpp>
#include <deeprec/memory/detail/mapping.hpp>
#include <deeprec/memory/detail/numa.hpp>
#include <deeprec/memory/detail/page_report.hpp>
#include <deeprec/memory/mapping_options.hpp>
#include <deeprec/support/file_faults.hpp>
#include <deeprec/support/whole_file.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A pmr resource for large blocks: each is a mapping at a multiple of 2 MB.
///
/// A file that somebody else truncates while it is mapped ends the process (SIGBUS) where a lost page is
/// touched; files of in_folder() have no name, so nobody can. Space in it is reserved when a block is
/// allocated: a full disk refuses the block.
/// @cost    allocate: some system calls, and with faults::at_once the pages
/// @threads thread-safe
/// @error   std::bad_alloc where the node, the file system or the device has no more: last_refusal() says why
///          (without exceptions: prints and aborts)
class mapped_resource final : public std::pmr::memory_resource {
  enum class kind : unsigned char { node, file, device };
  class passkey {
    friend mapped_resource;
    passkey() = default;
  };

 public:
  using made = result<std::unique_ptr<mapped_resource>>;

  /// Memory of a NUMA node, and of no other one.
  ///
  /// @param upstream  for blocks of less than 1 MB
  /// @cost    some system calls
  /// @threads reentrant
  /// @error   invalid_value: there is no such node; unsupported: the kernel refuses to bind memory
  static made on_node(int node, mapping_options options = {},
                      std::pmr::memory_resource* upstream = std::pmr::new_delete_resource()) {
    return detail::on_file({}, "mapped_resource::on_node", [&]() -> made {
      if (!detail::has_numa_node(node))
        return fault(errc::invalid_value,
                     "mapped_resource::on_node: node must be one of this machine (it is " +
                         std::to_string(node) + ")");
      auto tried = detail::mapping::of_memory(4096);
      if (!tried) return tried.fault();
      if (const int refused = detail::bind_to_node(tried.value().data(), 4096, node); refused != 0)
        return fault(errc::unsupported, "cannot bind memory: " + std::system_category().message(refused));
      return std::make_unique<mapped_resource>(passkey(), kind::node, detail::descriptor(), node, 0, options,
                                               upstream);
    });
  }
  /// Memory of a file without a name, in a folder.
  ///
  /// @cost    some system calls
  /// @threads reentrant
  /// @error   io_error, with the folder and the system's reason; unsupported: its file system can't reserve
  ///          space
  static made in_folder(const std::string& folder, mapping_options options = {},
                        std::pmr::memory_resource* upstream = std::pmr::new_delete_resource()) {
    return detail::on_file(folder, "mapped_resource::in_folder", [&]() -> made {
      auto file = detail::open_at(AT_FDCWD, folder.c_str(), O_RDWR | O_TMPFILE, mode_t{0600});
      if (!file.open()) return detail::system_fault("cannot make a file without a name in it");
      if (::fallocate(file.get(), 0, 0, 4096) != 0) {
        if (errno != EOPNOTSUPP) return detail::system_fault("cannot reserve space in it");
        return status(errc::unsupported, "its file system must be able to reserve space (fallocate)");
      }
      constexpr std::uint64_t most = (std::numeric_limits<std::int64_t>::max)();
      return std::make_unique<mapped_resource>(passkey(), kind::file, std::move(file), -1, most, options,
                                               upstream);
    });
  }
  /// Memory of a DAX device. What is on it is overwritten.
  ///
  /// @cost    some system calls
  /// @threads reentrant
  /// @error   io_error, with the path and the system's reason, also where another process uses it so;
  ///          unsupported: no DAX device
  static made on_device(const std::string& path, mapping_options options = {},
                        std::pmr::memory_resource* upstream = std::pmr::new_delete_resource()) {
    return detail::on_file(path, "mapped_resource::on_device", [&]() -> made {
      auto file = detail::open_at(AT_FDCWD, path.c_str(), O_RDWR | O_NONBLOCK);
      if (!file.open()) return detail::system_fault("cannot open");
      const std::uint64_t bytes = detail::bytes_of_dax_device(file.get());
      if (bytes == 0) return status(errc::unsupported, "must be a DAX device, such as /dev/dax0.0");
      if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0)
        return detail::system_fault("cannot lock it for this process");
      return std::make_unique<mapped_resource>(passkey(), kind::device, std::move(file), -1, bytes, options,
                                               upstream);
    });
  }

  /// For the functions above.
  mapped_resource(passkey, kind place, detail::descriptor file, int node, std::uint64_t bytes,
                  mapping_options options, std::pmr::memory_resource* upstream)
      : kind_(place),
        file_(std::move(file)),
        node_(node),
        ranges_(bytes),
        options_(options),
        upstream_(upstream) {}
  mapped_resource(const mapped_resource&) = delete;
  mapped_resource& operator=(const mapped_resource&) = delete;

  /// Queries the kernel for the kinds of pages that this resource's memory is on.
  ///
  /// @cost    reads /proc/self/smaps: some ms
  /// @threads thread-safe
  /// @error   none; pages stay 0 where /proc is missing
  [[nodiscard]] mapped_report report() const {
    const std::lock_guard lock(mutex_);
    mapped_report answer;
    for (const auto& [begin, held] : blocks_) {
      answer.mapped += held.memory.bytes();
      if (held.memory.is_direct()) answer.direct += held.memory.bytes();
    }
    const detail::page_report pages = detail::pages_of([&](std::uintptr_t begin, std::uintptr_t end) {
      const auto after = blocks_.lower_bound(end);
      if (after == blocks_.begin()) return false;
      const auto& [first, held] = *std::prev(after);
      return first + held.memory.bytes() > begin;
    });
    answer.resident = pages.resident;
    answer.huge = pages.transparent_huge + pages.explicit_huge;
    return answer;
  }
  /// Why the last block was refused that was; none where none was.
  ///
  /// @cost    a copy
  /// @threads thread-safe
  /// @error   none
  [[nodiscard]] std::optional<fault> last_refusal() const {
    const std::lock_guard lock(mutex_);
    return refusal_;
  }

 private:
  struct block {
    detail::mapping memory;
    std::uint64_t offset = 0;
  };

  static bool is_large(std::size_t bytes, std::size_t alignment) noexcept {
    return bytes >= detail::huge_page_bytes / 2 && alignment <= detail::huge_page_bytes;
  }

  // Where a block of a file or a device lies in it; none where there is no room.
  std::optional<std::uint64_t> take(std::size_t size) {
    if (kind_ == kind::node) return 0;
    const std::lock_guard lock(mutex_);
    return ranges_.take(size);
  }
  void give(std::uint64_t offset, std::size_t size) noexcept {
    if (kind_ == kind::node) return;
    if (kind_ == kind::file)
      static_cast<void>(::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                    static_cast<off_t>(offset), static_cast<off_t>(size)));
    const std::lock_guard lock(mutex_);
    ranges_.give(offset);
  }
  result<detail::mapping> map(std::size_t size, std::uint64_t offset) const {
    if (kind_ == kind::node && size > detail::available_on_node(node_))
      return status(errc::out_of_memory, "the node has no more memory");
    if (kind_ == kind::file &&
        ::fallocate(file_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(size)) != 0)
      return detail::system_fault("cannot reserve " + std::to_string(size) + " bytes");
    auto mapped = kind_ == kind::node ? detail::mapping::of_memory(size)
                                      : detail::mapping::of_file(file_.get(), offset, size, false);
    if (!mapped) return mapped;
    const detail::mapping& memory = mapped.value();
    if (kind_ == kind::node) {
      if (const int refused = detail::bind_to_node(memory.data(), memory.bytes(), node_); refused != 0)
        return fault(errc::unsupported, "cannot bind memory: " + std::system_category().message(refused));
    }
    if (options_.size == mapping_options::pages::huge) memory.want_huge_pages();
    if (options_.when == mapping_options::faults::at_once) {
      if (const auto done = memory.fault_in(true); !done) return done.fault();
    }
    return mapped;
  }

  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (!is_large(bytes, alignment)) return upstream_->allocate(bytes, alignment);
    constexpr std::size_t most = static_cast<std::size_t>(-1) / 2;  // so that no sum wraps
    if (bytes > most) refuse(status(errc::out_of_memory, "mapped_resource: bytes must fit an address space"));
    const std::size_t size = detail::whole_huge_pages(bytes);
    std::map<std::uintptr_t, block> fresh;  // allocates the node before there is something to leak
    fresh[0] = {};
    auto entry = fresh.extract(fresh.begin());
    const auto offset = take(size);
    if (!offset) refuse(status(errc::out_of_memory, "mapped_resource: the device must have a free range"));
    auto mapped = map(size, *offset);
    if (!mapped) {
      give(*offset, size);
      refuse(fault(mapped.fault()).in_operation("mapped_resource"));
    }
    void* const memory = mapped.value().data();
    entry.key() = reinterpret_cast<std::uintptr_t>(memory);
    entry.mapped() = {std::move(mapped).value(), *offset};
    const std::lock_guard lock(mutex_);
    blocks_.insert(std::move(entry));
    return memory;
  }
  [[noreturn]] void refuse(const fault& why) {
    {
      const std::lock_guard lock(mutex_);
      refusal_ = why;
    }
#if DEEPREC_EXCEPTIONS
    throw std::bad_alloc();
#else
    why.or_throw();
#endif
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    if (!is_large(bytes, alignment)) return upstream_->deallocate(memory, bytes, alignment);
    std::map<std::uintptr_t, block>::node_type gone;
    {
      const std::lock_guard lock(mutex_);
      gone = blocks_.extract(reinterpret_cast<std::uintptr_t>(memory));
    }
    const std::size_t size = gone.mapped().memory.bytes();
    gone.mapped().memory = {};
    give(gone.mapped().offset, size);
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }

  kind kind_;
  detail::descriptor file_;
  int node_;
  detail::mapped_ranges ranges_;
  mapping_options options_;
  std::pmr::memory_resource* upstream_;
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, block> blocks_;  // by address
  std::optional<fault> refusal_;
};

}}  // namespace deeprec::DEEPREC_ABI
