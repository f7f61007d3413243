// Which character devices are DAX devices, and how large: sysfs.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The bytes of an open DAX device; 0 where the file is something else.
inline std::uint64_t bytes_of_dax_device(int file) {
  // statx gives the two numbers apart; sys/sysmacros.h would leave the macros major and minor to users.
  struct statx facts{};
  if (::statx(file, "", AT_EMPTY_PATH, STATX_TYPE, &facts) != 0 || !S_ISCHR(facts.stx_mode)) return 0;
  const std::string folder =
      "/sys/dev/char/" + std::to_string(facts.stx_rdev_major) + ':' + std::to_string(facts.stx_rdev_minor);
  char subsystem[512];
  const ssize_t length = ::readlink((folder + "/subsystem").c_str(), subsystem, sizeof(subsystem));
  if (length < 0) return 0;
  if (!std::string_view(subsystem, static_cast<std::size_t>(length)).ends_with("/dax")) return 0;
  std::FILE* const size = std::fopen((folder + "/size").c_str(), "re");
  if (size == nullptr) return 0;
  unsigned long bytes = 0;
  if (std::fscanf(size, "%lu", &bytes) != 1) bytes = 0;
  std::fclose(size);
  return bytes;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
