// Which character devices are DAX devices, and how large: sysfs.
#pragma once

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The bytes of an open DAX device; 0 where the file is something else.
inline std::uint64_t bytes_of_dax_device(int file) {
  struct stat facts{};
  if (::fstat(file, &facts) != 0 || !S_ISCHR(facts.st_mode)) return 0;
  const std::string folder =
      "/sys/dev/char/" + std::to_string(major(facts.st_rdev)) + ':' + std::to_string(minor(facts.st_rdev));
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
