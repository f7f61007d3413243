// A folder of a test, which goes with it; and files as bytes.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

namespace deeprec_test {

/// Where tests make files: in memory where the system has files there, since ext4 takes ever longer to make
/// files after some thousands were removed.
inline std::filesystem::path folder_of_tests() {
  const std::filesystem::path memory = "/dev/shm";
  return ::access(memory.c_str(), W_OK | X_OK) == 0 ? memory : std::filesystem::temp_directory_path();
}

/// A folder of its own, which is removed. Its name has a space, an accent and a Chinese character.
class temporary_folder {
 public:
  explicit temporary_folder(const std::filesystem::path& in = folder_of_tests()) {
    static int count = 0;
    path_ = in / ("deeprec test \xc3\xa9\xe8\xa1\xa8 " + std::to_string(::getpid()) + " " +
                  std::to_string(count++));
    std::filesystem::remove_all(path_);
    std::filesystem::create_directory(path_);
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
  ~temporary_folder() {
    std::error_code ignored;
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all, ignored);
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string path() const { return path_.string(); }
  /// The names in it, sorted, but for that of the lock.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& one : std::filesystem::directory_iterator(path_)) {
      const std::string name = one.path().filename().string();
      if (name != "checkpoint.lock") all.push_back(name);
    }
    std::sort(all.begin(), all.end());
    return all;
  }

 private:
  std::filesystem::path path_;
};

inline std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace deeprec_test
