// What was asked of a memory resource, call by call; written as text, and asked of another resource again.
//
//   allocation_log log;
//   logging_resource recorded(log);            a step runs on it
//   std::ofstream("step.log") << log.text();
//   ...
//   replay(allocation_log::from_text(text).or_throw(), candidate);        which resource serves it best?
//
// Text: a line for each call, "a 7 4096 64" (block 7, bytes, alignment) or "f 7"; "r 4096 64": refused.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// One call of a resource. Blocks are numbered in the order of their allocation, from 0.
struct allocation_event {
  enum class kind : unsigned char { allocated, freed, refused };
  kind what = kind::allocated;
  index_t block = -1;  ///< of what was refused: -1
  std::size_t bytes = 0;
  std::size_t alignment = 1;

  friend bool operator==(const allocation_event&, const allocation_event&) = default;
};

/// The calls of one resource, in order.
///
/// @threads one thread, while its logging_resource makes no call
class allocation_log {
 public:
  [[nodiscard]] const std::vector<allocation_event>& events() const noexcept { return events_; }
  /// Blocks that were allocated; those of them that were not freed are live at the end.
  [[nodiscard]] index_t blocks() const noexcept { return blocks_; }

  /// The log as text.
  [[nodiscard]] std::string text() const {
    std::string all;
    for (const allocation_event& one : events_) {
      switch (one.what) {
        case allocation_event::kind::allocated:
          all += "a " + std::to_string(one.block) + ' ' + std::to_string(one.bytes) + ' ' +
                 std::to_string(one.alignment);
          break;
        case allocation_event::kind::freed:
          all += "f " + std::to_string(one.block);
          break;
        case allocation_event::kind::refused:
          all += "r " + std::to_string(one.bytes) + ' ' + std::to_string(one.alignment);
          break;
      }
      all += '\n';
    }
    return all;
  }

  /// A log from its text; throws std::bad_alloc.
  ///
  /// @cost    O(calls)
  /// @threads reentrant
  /// @error   parse_error, with the line: what is no call, an alignment that is no power of two, a block that
  ///          is not the next one, or that is not live
  [[nodiscard]] static result<allocation_log> from_text(std::string_view text) {
    allocation_log log;
    std::vector<allocation_event> blocks;  // their allocations; of kind `freed` when they are not live
    for (index_t line = 1; !text.empty(); ++line) {
      const std::size_t end = (std::min)(text.find('\n'), text.size());
      allocation_event one;
      const char* const fault = parse(text.substr(0, end), blocks, one);
      if (fault != nullptr) return status(errc::parse_error, fault, {.line = line});
      log.add(one);
      text.remove_prefix((std::min)(end + 1, text.size()));
    }
    return log;
  }

 private:
  friend class logging_resource;

  void add(const allocation_event& one) {
    events_.push_back(one);
    if (one.what == allocation_event::kind::allocated) ++blocks_;
  }
  static bool number(std::string_view& line, std::uint64_t& value) noexcept {
    if (line.empty() || line.front() != ' ') return false;
    line.remove_prefix(1);
    const auto read = std::from_chars(line.data(), line.data() + line.size(), value);
    if (read.ec != std::errc()) return false;
    line.remove_prefix(static_cast<std::size_t>(read.ptr - line.data()));
    return true;
  }
  static const char* parse(std::string_view line, std::vector<allocation_event>& blocks,
                           allocation_event& one) {
    constexpr const char* no_call =
        "allocation_log: a line must be \"a block bytes alignment\", \"f block\" or \"r bytes alignment\"";
    using kind = allocation_event::kind;
    if (line.empty()) return no_call;
    const char letter = line.front();
    line.remove_prefix(1);
    std::uint64_t block = 0, bytes = 0, alignment = 1;
    const bool is_whole = letter == 'a'
                              ? number(line, block) && number(line, bytes) && number(line, alignment)
                          : letter == 'f' ? number(line, block)
                          : letter == 'r' ? number(line, bytes) && number(line, alignment)
                                          : false;
    if (!is_whole || !line.empty()) return no_call;
    if (alignment == 0 || (alignment & (alignment - 1)) != 0)
      return "allocation_log: an alignment must be a power of two";
    if (letter == 'a') {
      if (block != blocks.size()) return "allocation_log: an allocated block must have the next number";
      one = {kind::allocated, static_cast<index_t>(block), bytes, alignment};
      blocks.push_back(one);
    } else if (letter == 'f') {
      if (block >= blocks.size() || blocks[block].what == kind::freed)
        return "allocation_log: a freed block must be live";
      blocks[block].what = kind::freed;
      one = blocks[block];
    } else {
      one = {kind::refused, -1, bytes, alignment};
    }
    return nullptr;
  }

  std::vector<allocation_event> events_;
  index_t blocks_ = 0;
};

/// Writes the calls of a resource to a log.
///
/// @cost    a lock and O(log live blocks) for each call; 32 bytes of log
/// @threads thread-safe, one call at a time; the log is read while there is none
/// @error   as the resource behind it; std::bad_alloc where the log can't grow
class logging_resource final : public std::pmr::memory_resource {
 public:
  /// @pre the log is that of no other resource, and outlives this one
  explicit logging_resource(allocation_log& log,
                            std::pmr::memory_resource* upstream = std::pmr::get_default_resource()) noexcept
      : log_(log), upstream_(upstream) {}
  logging_resource(const logging_resource&) = delete;
  logging_resource& operator=(const logging_resource&) = delete;

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    using kind = allocation_event::kind;
    const std::lock_guard lock(mutex_);
    // Room for this call and for the frees of all blocks, so that nothing fails once the block is there.
    std::vector<allocation_event>& events = log_.events_;
    const std::size_t needed = events.size() + live_.size() + 2;
    if (events.capacity() < needed) events.reserve((std::max)(needed, 2 * events.capacity()));
    std::map<void*, index_t> made;
    made[nullptr] = log_.blocks();
    auto entry = made.extract(made.begin());
#if DEEPREC_EXCEPTIONS
    try {
#endif
      entry.key() = upstream_->allocate(bytes, alignment);
#if DEEPREC_EXCEPTIONS
    } catch (const std::bad_alloc&) {
      log_.add({kind::refused, -1, bytes, alignment});
      throw;
    }
#endif
    void* const block = entry.key();
    log_.add({kind::allocated, entry.mapped(), bytes, alignment});
    live_.insert(std::move(entry));
    return block;
  }
  void do_deallocate(void* block, std::size_t bytes, std::size_t alignment) override {
    const std::lock_guard lock(mutex_);
    if (const auto found = live_.find(block); found != live_.end()) {
      log_.add({allocation_event::kind::freed, found->second, bytes, alignment});
      live_.erase(found);
    }
    upstream_->deallocate(block, bytes, alignment);
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }

  allocation_log& log_;
  std::pmr::memory_resource* upstream_;
  std::mutex mutex_;
  std::map<void*, index_t> live_;  // by address
};

/// Makes the calls of a log again, and frees what is live at its end. What was refused then is not asked for;
/// what is refused now is left out. Returns how many requests that were.
///
/// @cost    that of the calls, and a list of the blocks
/// @threads as the resource; the log is not changed
/// @error   none but std::bad_alloc for the list (without exceptions a refusal ends the program)
inline index_t replay(const allocation_log& log, std::pmr::memory_resource& resource) {
  struct block {
    void* memory = nullptr;
    std::size_t bytes = 0, alignment = 1;
  };
  std::vector<block> blocks(static_cast<std::size_t>(log.blocks()));
  index_t refused = 0;
  const auto free = [&](block& one) {
    if (one.memory != nullptr)
      resource.deallocate(std::exchange(one.memory, nullptr), one.bytes, one.alignment);
  };
  for (const allocation_event& one : log.events()) {
    if (one.what == allocation_event::kind::refused) continue;
    block& of = blocks[static_cast<std::size_t>(one.block)];
    if (one.what == allocation_event::kind::freed) {
      free(of);
      continue;
    }
#if DEEPREC_EXCEPTIONS
    try {
#endif
      of = {resource.allocate(one.bytes, one.alignment), one.bytes, one.alignment};
#if DEEPREC_EXCEPTIONS
    } catch (const std::bad_alloc&) {
      ++refused;
    }
#endif
  }
  for (block& one : blocks) free(one);
  return refused;
}

}}  // namespace deeprec::DEEPREC_ABI
