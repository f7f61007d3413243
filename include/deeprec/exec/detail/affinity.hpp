// The processors that threads may run on, and do.
#pragma once

#include <sched.h>

#include <cerrno>
#include <cstddef>
#include <vector>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// An affinity mask for a given number of processors; a cpu_set_t alone has 1024.
class cpu_mask {
 public:
  explicit cpu_mask(int cpus) noexcept : mask_(CPU_ALLOC(cpus)), bytes_(CPU_ALLOC_SIZE(cpus)) {
    if (mask_ != nullptr) CPU_ZERO_S(bytes_, mask_);
  }
  cpu_mask(const cpu_mask&) = delete;
  cpu_mask& operator=(const cpu_mask&) = delete;
  ~cpu_mask() { CPU_FREE(mask_); }

  /// Null where the allocation failed.
  [[nodiscard]] cpu_set_t* data() const noexcept { return mask_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] int cpus() const noexcept { return static_cast<int>(8 * bytes_); }
  void insert(int cpu) noexcept { CPU_SET_S(static_cast<std::size_t>(cpu), bytes_, mask_); }
  void erase(int cpu) noexcept { CPU_CLR_S(static_cast<std::size_t>(cpu), bytes_, mask_); }
  [[nodiscard]] bool has(int cpu) const noexcept {
    return CPU_ISSET_S(static_cast<std::size_t>(cpu), bytes_, mask_) != 0;
  }

 private:
  cpu_set_t* mask_;
  std::size_t bytes_;
};

/// The processors in the mask that get_affinity(bytes, mask) fills in as sched_getaffinity does: a
/// mask that is too small for the system's is refused with EINVAL.
template <class GetAffinity>
std::vector<int> cpus_of_affinity(const GetAffinity& get_affinity) {
  constexpr int most = 1 << 22;
  std::vector<int> found;
  for (int size = CPU_SETSIZE; size <= most; size *= 2) {
    const cpu_mask mask(size);
    if (mask.data() == nullptr) break;
    if (get_affinity(mask.bytes(), mask.data()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    for (int cpu = 0; cpu < mask.cpus(); ++cpu) {
      if (mask.has(cpu)) found.push_back(cpu);
    }
    break;
  }
  if (found.empty()) found.push_back(0);
  return found;
}

inline void pin_this_thread(int cpu) noexcept {
  cpu_mask mask(cpu + 1);
  if (mask.data() == nullptr) return;
  mask.insert(cpu);
  sched_setaffinity(0, mask.bytes(), mask.data());  // on failure the thread stays unpinned
}

/// Moves this thread to another processor that it may run on; it may run on this one again afterwards.
/// Nothing where there is no other.
///
/// @cost    three system calls
/// @threads reentrant
/// @error   none: on failure the thread stays where it is
inline void leave_processor(int cpu) noexcept {
  cpu_mask allowed(CPU_SETSIZE);
  if (allowed.data() == nullptr || sched_getaffinity(0, allowed.bytes(), allowed.data()) != 0) return;
  if (!allowed.has(cpu) || CPU_COUNT_S(allowed.bytes(), allowed.data()) < 2) return;
  allowed.erase(cpu);
  if (sched_setaffinity(0, allowed.bytes(), allowed.data()) != 0) return;
  allowed.insert(cpu);
  sched_setaffinity(0, allowed.bytes(), allowed.data());
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
