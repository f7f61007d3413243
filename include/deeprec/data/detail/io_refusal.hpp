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
    case EBADF:
      return {errc::io_error, "the descriptor is not open, or not for reading"};
    case EPERM:
      return {errc::io_error, "operation not permitted"};
    case ENXIO:
    case ENODEV:
      return {errc::io_error, "no such device"};
    case EINVAL:
      return {errc::io_error, "can't be read"};
    case ENOMEM:
      return {errc::out_of_memory, "the system has no memory to open or read it"};
    case ESTALE:
      return {errc::io_error, "the file was removed on its server"};
    case ETIMEDOUT:
      return {errc::io_error, "the device did not respond in time"};
    case ECONNRESET:
      return {errc::io_error, "the other end closed the connection"};
    case ENOTDIR:
      return {errc::io_error, "a part of the path is not a directory"};
    default:
      return {errc::io_error, "the system refused to open or read it"};
  }
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
