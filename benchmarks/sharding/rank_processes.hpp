// Ranks of bench_sharding_ranks, started by mpirun and asked for one round after the other.
//
//   rank_processes ranks(2, {"steps", "16"});
//   while (...) if (!ranks.round(figures)) return state.SkipWithError(ranks.problem());
//
// A round is a line "go" to rank 0, and a line of numbers from it. The ranks end with this object. No header
// of deeprec here.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace deeprec_bench {

class rank_processes {
 public:
  /// Processes of this machine; or, with a rate, of as many hosts that are emulated, whose links have it.
  rank_processes(int count, const std::string& arguments, const std::string& rate = "") {
    const std::string number = std::to_string(count), hosts = DEEPREC_HOSTS_SCRIPT " ";
    if (!rate.empty() && std::system((hosts + "1 0 true 2>/dev/null").c_str()) != 0) {
      problem_ = "unfit: network namespaces are not permitted";
      return;
    }
    start("exec timeout -k 10 1800 " + (rate.empty() ? "" : hosts + number + " " + rate + " ") +
          DEEPREC_MPIRUN " " + number + " " DEEPREC_RANKS " " + arguments);
  }
  rank_processes(const rank_processes&) = delete;
  rank_processes& operator=(const rank_processes&) = delete;
  ~rank_processes() {
    if (to_ != nullptr) std::fclose(to_);  // their sign to end
    if (from_ != nullptr) std::fclose(from_);
    int state = 0;
    if (child_ > 0) waitpid(child_, &state, 0);
  }

  /// The next round's numbers, or false: see problem().
  bool round(std::vector<double>& numbers) {
    numbers.clear();
    if (!problem_.empty()) return false;
    std::fputs("go\n", to_);
    std::fflush(to_);
    std::string line;
    for (int c = std::fgetc(from_); c != EOF && c != '\n'; c = std::fgetc(from_))
      line += static_cast<char>(c);
    std::istringstream words(line);
    for (double number = 0; words >> number;) numbers.push_back(number);
    if (numbers.empty()) problem_ = line.empty() ? "the ranks ended" : line;
    return problem_.empty();
  }
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  void start(const std::string& command) {
    std::signal(SIGPIPE, SIG_IGN);
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) std::abort();
    child_ = fork();
    if (child_ == 0) {
      dup2(in[0], 0);
      dup2(out[1], 1);
      execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    to_ = fdopen(in[1], "w");
    from_ = fdopen(out[0], "r");
  }

  pid_t child_ = -1;
  FILE* to_ = nullptr;
  FILE* from_ = nullptr;
  std::string problem_;
};

}  // namespace deeprec_bench
