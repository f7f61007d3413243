// Figures of a benchmark's malloc side in a process of its own, whose malloc is that of jemalloc, mimalloc or
// tcmalloc, where this machine has the library.
//
//   benchmark ── starts itself, LD_PRELOAD=library, task in the environment ──> prints figures, ends
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace memory_bench {

struct peer_malloc {
  const char* name;
  const char* library;
};
inline constexpr peer_malloc peer_mallocs[] = {{"jemalloc", "libjemalloc.so.2"},
                                               {"mimalloc", "libmimalloc.so.2"},
                                               {"tcmalloc", "libtcmalloc_minimal.so.4"}};

inline constexpr const char* peer_variable = "DEEPREC_BENCH_AS_PEER";

/// In the process of a peer: its task. Empty in the benchmark itself.
inline std::string_view task_as_peer() {
  const char* const task = std::getenv(peer_variable);
  return task == nullptr ? std::string_view() : std::string_view(task);
}
/// In the process of a peer: the end, before main.
[[noreturn]] inline void end_as_peer(std::initializer_list<double> figures) {
  for (const double figure : figures) std::printf("%.9f\n", figure);
  std::fflush(stdout);
  std::_Exit(0);
}

/// The figures of a task; none where the library is missing or the process failed.
inline std::vector<double> figures_of_peer(const peer_malloc& peer, const std::string& task,
                                           std::size_t count) {
  std::string path;
  for (const char* const folder : {"/usr/lib/x86_64-linux-gnu/", "/usr/lib/aarch64-linux-gnu/", "/usr/lib64/",
                                   "/usr/lib/", "/usr/local/lib/"}) {
    if (path.empty() && std::filesystem::exists(std::string(folder) + peer.library))
      path = std::string(folder) + peer.library;
  }
  if (path.empty()) return {};
  const std::string command = std::string(peer_variable) + "=" + task + " LD_PRELOAD=" + path + " /proc/" +
                              std::to_string(::getpid()) + "/exe";
  std::FILE* const out = ::popen(command.c_str(), "r");
  if (out == nullptr) return {};
  std::vector<double> read;
  for (double figure = 0; std::fscanf(out, "%lf", &figure) == 1;) read.push_back(figure);
  if (::pclose(out) != 0 || read.size() != count) read.clear();
  return read;
}

}  // namespace memory_bench
