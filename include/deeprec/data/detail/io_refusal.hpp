// Why the system refused to open or read a file, in words.
#pragma once

#include <cerrno>

#include <deeprec/core/config.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

inline status io_refusal(int code) noexcept {
  switch (code) {
    case ENOENT:
      return {errc::io_error, "no such file"};
    case EACCES:
      return {errc::io_error, "permission denied"};
    case EISDIR:
      return {errc::io_error, "is a directory"};
    case EMFILE:
    case ENFILE:
      return {errc::io_error, "too many open files"};
    case EIO:
      return {errc::io_error, "the device reported an error"};
    case ELOOP:
      return {errc::io_error, "too many symbolic links"};
    case ENAMETOOLONG:
      return {errc::io_error, "the name is too long"};
    case ENOTDIR:
      return {errc::io_error, "a part of the path is not a directory"};
    default:
      return {errc::io_error, "the system refused to open or read it"};
  }
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
