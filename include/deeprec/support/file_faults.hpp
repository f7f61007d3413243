// Faults of files: with the file's name, the operation, and what was read there.
#pragma once

#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Runs f, which returns a result. Its faults get the operation, and the file where they have none; failed
/// allocations are faults.
template <class F>
auto on_file(const std::string& path, const char* operation, const F& f) -> decltype(f()) {
  const auto in_place = [&](fault why) {
    if (why.file().empty()) why = std::move(why).in_file(path);
    return std::move(why).in_operation(operation);
  };
#if DEEPREC_EXCEPTIONS
  try {
#endif
    auto done = f();
    if (!done) return in_place(done.fault());
    return done;
#if DEEPREC_EXCEPTIONS
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {  // more elements than an array can have
  }
  return in_place(status(errc::out_of_memory, "memory for names and numbers was refused"));
#endif
}

inline fault invalid(std::string why) { return {errc::invalid_value, std::move(why)}; }
inline fault misfit(std::string why) { return {errc::shape_mismatch, std::move(why)}; }

inline std::string in_quotes(std::string_view name) { return '"' + std::string(name) + '"'; }

}}}  // namespace deeprec::DEEPREC_ABI::detail
