// What every op of the package shares: PyTorch's threads as the executor of a verb, scratch memory that a
// thread keeps, and a fault as a Python exception.
#pragma once

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <new>
#include <string>
#include <utility>

#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/interop/at_parallel_for.hpp>

#include "thread_scratch.hpp"

namespace deeprec_torch {

using deeprec_packages::call_on;
using deeprec_packages::scratch;

/// at::parallel_for as a bulk executor, on as many threads as torch.set_num_threads() allows.
inline auto threads() {
  return deeprec::torch_executor([](std::int64_t begin, std::int64_t end, std::int64_t grain,
                                    const auto& body) { at::parallel_for(begin, end, grain, body); },
                                 at::in_parallel_region() ? 1 : at::get_num_threads());
}

/// Throws what Python sees: IndexError for an id, ValueError for the caller's sizes and values,
/// OutOfMemoryError, NotImplementedError, and RuntimeError for the rest.
[[noreturn]] inline void raise(deeprec::errc code, const std::string& message) {
  using deeprec::errc;
  switch (code) {
    case errc::id_out_of_range:
      TORCH_CHECK_INDEX(false, message);
      break;
    case errc::shape_mismatch:
    case errc::offsets_negative:
    case errc::offsets_decreasing:
    case errc::offsets_beyond_ids:
    case errc::weight_is_nan:
    case errc::invalid_value:
    case errc::parse_error:
      TORCH_CHECK_VALUE(false, message);
      break;
    case errc::unsupported:
      TORCH_CHECK_NOT_IMPLEMENTED(false, message);
      break;
    case errc::out_of_memory:
      TORCH_CHECK_WITH(OutOfMemoryError, false, message);
      break;
    default:
      break;
  }
  C10_THROW_ERROR(Error, message);
}

inline void raise_on_fault(const deeprec::status& s) {
  if (!s) [[unlikely]]
    raise(s.code(), s.message());
}
/// The message of a result's fault has its file as well.
template <class T>
void raise_on_fault(const deeprec::result<T>& r) {
  if (!r) [[unlikely]]
    raise(r.code(), r.fault().message());
}

/// Calls what throws as the library does: constructors, and functions that return owners.
template <class F>
decltype(auto) raising(F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (const deeprec::error& fault) {
    raise(fault.code(), fault.what());
  } catch (const std::bad_alloc&) {
    raise(deeprec::errc::out_of_memory, "deeprec: memory for the tables must be available (was refused)");
  }
}

}  // namespace deeprec_torch
