// How many processors' worth of time the control groups of this process grant.
//
//   /proc/self/cgroup      0::/docker/ab                   the group of the process, for each hierarchy
//   /proc/self/mountinfo   ... / /sys/fs/cgroup ... - cgroup2 ...      where that hierarchy can be read
//   /sys/fs/cgroup/docker/ab/cpu.max     200000 100000     of this group and all above, the smallest applies
//
// Version 2 has cpu.max; version 1 has cpu.cfs_quota_us (-1: no limit) and cpu.cfs_period_us.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The content of a small file; empty where it can't be read.
inline std::string content_of(const std::string& path) {
  std::string text;
  if (std::FILE* file = std::fopen(path.c_str(), "re")) {
    char block[4096];
    std::size_t got = 0;
    while ((got = std::fread(block, 1, sizeof(block), file)) > 0) text.append(block, got);
    std::fclose(file);
  }
  return text;
}

/// Removes and returns the text up to a separator; removes the separator too.
inline std::string_view take_until(std::string_view& text, char separator) {
  const std::size_t at = (std::min)(text.find(separator), text.size());
  const std::string_view taken = text.substr(0, at);
  text.remove_prefix((std::min)(at + 1, text.size()));
  return taken;
}

inline bool lists(std::string_view names, std::string_view wanted) {
  while (!names.empty()) {
    if (take_until(names, ',') == wanted) return true;
  }
  return false;
}

/// The whole text as a positive integer; 0 where it is none.
inline std::int64_t positive_number(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  std::int64_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  return failed == std::errc() && end == text.data() + text.size() && value > 0 ? value : 0;
}

/// quota / period, rounded up; 0 where there is no limit, and where the files hold something else.
inline int processors_of(std::string_view quota, std::string_view period) {
  const std::int64_t granted = positive_number(quota);
  const std::int64_t every = positive_number(period);
  if (granted == 0 || every == 0) return 0;
  const std::int64_t whole = granted / every + (granted % every != 0 ? 1 : 0);
  return static_cast<int>((std::min)(whole, std::int64_t{1} << 20));
}

/// Decodes the octal escapes of paths in mountinfo: \040 is a space.
inline std::string without_escapes(std::string_view path) {
  const auto digit = [&](std::size_t i) { return i < path.size() ? path[i] - '0' : -1; };
  const auto octal = [&](std::size_t i) { return digit(i) >= 0 && digit(i) < 8; };
  std::string plain;
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (path[i] == '\\' && octal(i + 1) && octal(i + 2) && octal(i + 3)) {
      plain += static_cast<char>(digit(i + 1) * 64 + digit(i + 2) * 8 + digit(i + 3));
      i += 3;
    } else {
      plain += path[i];
    }
  }
  return plain;
}

struct cgroup_mount {
  std::string group;  // the mounted part of the hierarchy
  std::string at;
};

/// The mounts of the hierarchy that limits processors: of version 2, or of version 1.
inline std::vector<cgroup_mount> cgroup_mounts(const std::string& root, bool version_2) {
  std::vector<cgroup_mount> found;
  const std::string text = content_of(root + "/proc/self/mountinfo");
  for (std::string_view lines = text; !lines.empty();) {
    // id parent device group at options [tag]... - type source more
    std::string_view line = take_until(lines, '\n');
    for (int i = 0; i < 3; ++i) take_until(line, ' ');
    const std::string_view group = take_until(line, ' ');
    const std::string_view at = take_until(line, ' ');
    while (!line.empty() && take_until(line, ' ') != "-") {
    }
    const std::string_view type = take_until(line, ' ');
    take_until(line, ' ');
    if (version_2 ? type == "cgroup2" : type == "cgroup" && lists(line, "cpu")) {
      found.push_back({without_escapes(group), without_escapes(at)});
    }
  }
  if (found.empty()) found.push_back({"/", version_2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu"});
  return found;
}

/// The limit of one group; 0 where it has none.
inline int quota_of_group(const std::string& folder, bool version_2) {
  if (!version_2) {
    return processors_of(content_of(folder + "/cpu.cfs_quota_us"), content_of(folder + "/cpu.cfs_period_us"));
  }
  const std::string text = content_of(folder + "/cpu.max");
  std::string_view period = text;
  const std::string_view quota = take_until(period, ' ');
  return processors_of(quota, period);
}

/// The smallest limit of the process's groups and those above them, in processors, rounded up; 0 where there
/// is no limit, or none can be read.
///
/// @param root prefix of every path; tests pass a made-up tree
/// @cost  some files of /proc and /sys are read
/// @threads thread-safe
/// @error none
inline int cpu_quota(const std::string& root = {}) {
  int smallest = 0;
  const auto add = [&](int limit) {
    if (limit > 0 && (smallest == 0 || limit < smallest)) smallest = limit;
  };
  const std::string text = content_of(root + "/proc/self/cgroup");
  for (std::string_view lines = text; !lines.empty();) {
    std::string_view line = take_until(lines, '\n');  // number:controllers:group
    const std::string_view number = take_until(line, ':');
    const std::string_view controllers = take_until(line, ':');
    const bool version_2 = number == "0" && controllers.empty();
    if (!version_2 && !lists(controllers, "cpu")) continue;
    bool seen = false;
    const auto mounts = cgroup_mounts(root, version_2);
    for (const cgroup_mount& mount : mounts) {
      const std::string above = mount.group == "/" ? std::string() : mount.group;
      if (!line.starts_with(above)) continue;
      std::string below(line.substr(above.size()));
      if (!below.empty() && below.front() != '/') continue;  // /ab is not above /abc
      seen = true;
      if (below == "/") below.clear();
      while (!below.empty()) {
        add(quota_of_group(root + mount.at + below, version_2));
        below.erase(below.rfind('/'));
      }
      add(quota_of_group(root + mount.at, version_2));
    }
    // The group is outside the mounted part: a container sees its own group at the mount point.
    for (std::size_t i = 0; !seen && i < mounts.size(); ++i) {
      add(quota_of_group(root + mounts[i].at, version_2));
    }
  }
  return smallest;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
