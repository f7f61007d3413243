// One line on stderr that says how far a loop is, how fast, and how long it will take. Silent
// unless stderr is a terminal.
//
//   dlrm  [##########----------]  50 %   48 k samples/s   12 s left
//   read  [##########----------]  50 %   310 MB/s   12 s left
//   read  1234 MB   310 MB/s                                            of a pipe, whose size is not known
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

namespace ctr {

class progress {
 public:
  enum class unit { samples, bytes };

  /// `total` 0: not known; `is_shown`: false where predictions are written to the same terminal.
  progress(const char* what, double total, unit of = unit::samples, bool is_shown = true)
      : what_(what), total_(total), unit_(of), shown_(is_shown && isatty(STDERR_FILENO) != 0) {}
  ~progress() {
    if (drawn_) std::fputs("\r\033[K", stderr);
  }
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;

  void show(double done) {
    if (!shown_ || done <= 0) return;
    const auto now = clock::now();
    if (now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    drawn_ = true;
    const bool in_bytes = unit_ == unit::bytes;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double rate = done / seconds, shown_rate = rate / (in_bytes ? 1e6 : 1e3);
    const char* const rate_words = in_bytes ? "MB/s" : "k samples/s";
    if (total_ <= 0) {
      std::fprintf(stderr, "\r%s  %.0f %s   %.0f %s\033[K", what_, done / (in_bytes ? 1e6 : 1),
                   in_bytes ? "MB" : "samples", shown_rate, rate_words);
    } else {
      const double part = std::min(1.0, done / total_);
      const auto filled = static_cast<std::size_t>(20 * part);
      const std::string bar = std::string(filled, '#') + std::string(20 - filled, '-');
      std::fprintf(stderr, "\r%s  [%s] %3.0f %%   %.0f %s   %.0f s left\033[K", what_, bar.c_str(),
                   100 * part, shown_rate, rate_words, (1 - part) * total_ / rate);
    }
    std::fflush(stderr);
  }

 private:
  using clock = std::chrono::steady_clock;
  const char* what_;
  double total_;
  unit unit_;
  bool shown_, drawn_ = false;
  clock::time_point start_ = clock::now();
  clock::time_point last_ = start_;
};

/// Whether a line of progress is for anybody: predictions may go to the same terminal.
inline bool shows_progress(const std::string& output) {
  return !output.empty() || isatty(STDOUT_FILENO) == 0;
}

}  // namespace ctr
