// The files of a folder of checkpoints, by their names: full-NUMBER.drt and delta-NUMBER.drt.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/support/whole_file.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

struct folder_file {
  bool is_full;
  std::uint64_t number;

  [[nodiscard]] std::string name() const {
    const std::string digits = std::to_string(number);
    const std::string zeros(digits.size() < 12 ? 12 - digits.size() : 0, '0');
    return (is_full ? "full-" : "delta-") + zeros + digits + ".drt";
  }
};

/// The file that a name in a folder stands for; false for other names.
inline bool parse_file_name(std::string_view name, folder_file& file) noexcept {
  constexpr std::string_view full = "full-", delta = "delta-", end = ".drt";
  file.is_full = name.starts_with(full);
  if (!file.is_full && !name.starts_with(delta)) return false;
  name.remove_prefix((file.is_full ? full : delta).size());
  if (!name.ends_with(end)) return false;
  name.remove_suffix(end.size());
  if (name.size() < 12) return false;
  const auto read = std::from_chars(name.data(), name.data() + name.size(), file.number);
  constexpr std::uint64_t most = std::uint64_t{1} << 62;  // files store it as a signed number
  return read.ec == std::errc() && read.ptr == name.data() + name.size() && file.number < most;
}

/// Calls use(name) for every name in a folder. A folder that does not exist has none.
template <class Use>
result<void> each_name(const std::string& path, const Use& use) {
  const descriptor folder = open_at(AT_FDCWD, path.c_str(), O_RDONLY | O_DIRECTORY);
  if (!folder.open()) {
    if (errno == ENOENT) return {};
    return system_fault("cannot open the folder").in_file(path);
  }
  const int number = ::dup(folder.get());
  DIR* const entries = number < 0 ? nullptr : ::fdopendir(number);
  if (entries == nullptr) {
    fault why = system_fault("cannot list the folder").in_file(path);
    if (number >= 0) ::close(number);
    return why;
  }
  errno = 0;
  while (const dirent* const entry = ::readdir(entries)) {
    use(std::string_view(entry->d_name));
    errno = 0;
  }
  const int failed = errno;
  ::closedir(entries);
  if (failed == 0) return {};
  errno = failed;
  return system_fault("cannot list the folder").in_file(path);
}

/// All files, by their numbers.
inline result<std::vector<folder_file>> list_folder(const std::string& path) {
  std::vector<folder_file> all;
  const auto listed = each_name(path, [&](std::string_view name) {
    if (folder_file file{}; parse_file_name(name, file)) all.push_back(file);
  });
  if (!listed) return listed.fault();
  std::sort(all.begin(), all.end(), [](const folder_file& a, const folder_file& b) {
    return a.number != b.number ? a.number < b.number : a.is_full > b.is_full;
  });
  return all;
}

/// Brings the names of a folder to the disk, and its own.
inline result<void> sync_folder(const std::string& path) {
  const descriptor folder = open_at(AT_FDCWD, path.c_str(), O_RDONLY | O_DIRECTORY);
  if (!folder.open()) return system_fault("cannot open the folder").in_file(path);
  const descriptor above = open_at(folder.get(), "..", O_RDONLY | O_DIRECTORY);
  if (!above.open() && errno != EACCES) return system_fault("cannot open the one above").in_file(path);
  for (const descriptor* const one : {&folder, &above}) {
    if (!one->open()) continue;                                 // where this process may not read its names
    if (::fsync(one->get()) == 0 || errno == EINVAL) continue;  // EINVAL: not supported by this file system
    return system_fault("cannot bring the folder to the disk").in_file(path);
  }
  return {};
}

/// Excludes other savers of a folder, in any process, while it exists. Makes the folder where it is missing.
class folder_lock {
 public:
  /// @param is_on_disk whether all that the folder has is: what earlier savers left may not be. Afterwards it
  ///                   is
  [[nodiscard]] result<void> take(const std::string& folder, bool& is_on_disk) {
    if (::mkdir(folder.c_str(), 0777) == 0) {
      is_on_disk = false;
    } else if (errno != EEXIST) {
      return system_fault("cannot make the folder").in_file(folder);
    }
    const std::string path = folder + "/checkpoint.lock";
    file_ = open_at(AT_FDCWD, path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (!file_.open()) return system_fault("cannot open").in_file(path);
    if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK)
        return fault(errc::io_error, "another process or thread is saving in this folder").in_file(folder);
      return system_fault("cannot lock").in_file(path);
    }
    if (is_on_disk) return {};
    auto done = sync_folder(folder);
    is_on_disk = done.ok();
    return done;
  }

 private:
  descriptor file_;
};

/// Removes the chains before the last `kept` full files, at least one, and what savers left that were killed.
/// What can't be removed stays. Under the lock.
inline void prune_folder(const std::string& folder, index_t kept) {
  kept = (std::max)(kept, index_t{1});
  std::vector<std::string> gone;
  std::vector<folder_file> all;
  const auto listed = each_name(folder, [&](std::string_view name) {
    constexpr std::string_view beside = ".saving";
    folder_file file{};
    if (parse_file_name(name, file)) {
      all.push_back(file);
    } else if (name.ends_with(beside) && parse_file_name(name.substr(0, name.size() - beside.size()), file)) {
      gone.emplace_back(name);
    }
  });
  if (!listed) return;
  std::vector<std::uint64_t> fulls;
  for (const folder_file& file : all)
    if (file.is_full) fulls.push_back(file.number);
  const auto chains = static_cast<std::size_t>(kept);
  if (fulls.size() >= chains) {
    const auto oldest = fulls.begin() + static_cast<std::ptrdiff_t>(fulls.size() - chains);
    std::nth_element(fulls.begin(), oldest, fulls.end());
    for (const folder_file& file : all)
      if (file.number < *oldest) gone.push_back(file.name());
  }
  for (const std::string& name : gone) ::unlink((folder + '/' + name).c_str());
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
