// Memory of one NUMA node: by system calls, and what the kernel says of nodes.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

inline constexpr int most_numa_nodes = 1024;

inline std::string folder_of_node(int node) { return "/sys/devices/system/node/node" + std::to_string(node); }
inline bool has_numa_node(int node) {
  return node >= 0 && node < most_numa_nodes && ::access(folder_of_node(node).c_str(), F_OK) == 0;
}
/// Pages of [data, data + bytes) come from this node only. 0, or an errno.
inline int bind_to_node(void* data, std::size_t bytes, int node) noexcept {
  constexpr int bits = std::numeric_limits<unsigned long>::digits;
  constexpr unsigned long mode = 2;  // MPOL_BIND, of a header that comes with libnuma
  unsigned long nodes[most_numa_nodes / bits] = {};
  nodes[node / bits] = 1UL << node % bits;
  const long done =
      ::syscall(SYS_mbind, data, bytes, mode, nodes, static_cast<unsigned long>(most_numa_nodes), 0U);
  return done == 0 ? 0 : errno;
}
/// Bytes that the kernel can give on a node without ending a process; the largest number where it does not
/// say.
inline std::size_t available_on_node(int node) {
  std::FILE* const facts = std::fopen((folder_of_node(node) + "/meminfo").c_str(), "re");
  if (facts == nullptr) return (std::numeric_limits<std::size_t>::max)();
  std::size_t all = 0;
  char line[256];
  while (std::fgets(line, sizeof(line), facts) != nullptr) {
    unsigned long kilobytes = 0;
    for (const char* const of : {"Node %*d MemFree: %lu kB", "Node %*d Active(file): %lu kB",
                                 "Node %*d Inactive(file): %lu kB", "Node %*d SReclaimable: %lu kB"}) {
      if (std::sscanf(line, of, &kilobytes) == 1) all += std::size_t{kilobytes} << 10;
    }
  }
  std::fclose(facts);
  return all;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
