// A child process for a test case whose failure is a crash, an endless wait or a changed process-wide
// setting.
#pragma once

#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

namespace deeprec_test {

// Runs f in a forked child and returns what it returned (0 to 125), 126 for an exception, or 128 + the signal
// that ended it. A child that is still running after `seconds` is ended by SIGALRM. Call it while no other
// thread of this process runs.
template <class F>
int in_child(F&& f, unsigned seconds = 120) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) return 127;
  if (child == 0) {
    alarm(seconds);
    int code = 126;
    try {
      code = f();
    } catch (...) {
      std::fputs("an exception left a child\n", stderr);
    }
    std::fflush(nullptr);
    _exit(code);
  }
  int state = 0;
  if (waitpid(child, &state, 0) != child) return 127;
  return WIFSIGNALED(state) ? 128 + WTERMSIG(state) : WEXITSTATUS(state);
}

inline int threads_of_this_process() {
  int count = 0;
  if (DIR* tasks = opendir("/proc/self/task")) {
    while (const dirent* entry = readdir(tasks)) count += entry->d_name[0] != '.' ? 1 : 0;
    closedir(tasks);
  }
  return count;
}

}  // namespace deeprec_test
