// One line on stderr that says how far a loop is, how fast, and how long it will take. Silent
// unless stderr is a terminal.
//
//   dlrm  [##########----------]  50 %   48 k samples/s   12 s left
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

namespace ctr {

class progress {
 public:
  progress(const char* what, double total) : what_(what), total_(total) {}
  ~progress() {
    if (drawn_) std::fputs("\r\033[K", stderr);
  }
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;

  void show(double done) {
    const auto now = clock::now();
    if (!terminal_ || now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    drawn_ = true;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double rate = done / seconds;
    const auto filled = static_cast<std::size_t>(20 * std::min(1.0, done / total_));
    const std::string bar = std::string(filled, '#') + std::string(20 - filled, '-');
    std::fprintf(stderr, "\r%s  [%s] %3.0f %%   %.0f k samples/s   %.0f s left\033[K", what_, bar.c_str(),
                 100 * done / total_, rate / 1000, (total_ - done) / rate);
    std::fflush(stderr);
  }

 private:
  using clock = std::chrono::steady_clock;
  const char* what_;
  double total_;
  bool terminal_ = isatty(STDERR_FILENO) != 0;
  bool drawn_ = false;
  clock::time_point start_ = clock::now();
  clock::time_point last_ = start_;
};

}  // namespace ctr
