// Faults of a call with many features: by the number of the feature, and the name of its table.
#pragma once

#include <c10/util/Exception.h>

#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>

namespace deeprec_torch {

/// The text of a fault of the library with "feature N of table NAME" for "table N": there the features of a
/// group are counted as tables.
///
/// @param name_of the name of a feature's table; empty: none
template <class NameOf>
std::string with_feature(std::string text, const NameOf& name_of) {
  constexpr std::string_view table = "table ";
  for (std::size_t at = text.find(table); at != std::string::npos; at = text.find(table, at + 1)) {
    const char* const first = text.data() + at + table.size();
    std::size_t feature = 0;
    const auto read = std::from_chars(first, text.data() + text.size(), feature);
    if (read.ec != std::errc()) continue;
    const std::string_view name = name_of(feature);
    std::string place = "feature " + std::to_string(feature);
    if (!name.empty()) (place += " of table ") += name;
    return text.replace(at, static_cast<std::size_t>(read.ptr - text.data()) - at, place);
  }
  return text;
}

/// Calls f, and throws its faults with the feature.
template <class F, class NameOf>
void naming_features(const F& f, const NameOf& name_of) {
  try {
    f();
  } catch (const c10::IndexError& fault) {
    TORCH_CHECK_INDEX(false, with_feature(fault.what_without_backtrace(), name_of));
  } catch (const c10::ValueError& fault) {
    TORCH_CHECK_VALUE(false, with_feature(fault.what_without_backtrace(), name_of));
  }
}

/// The same for the features of `tables`.
template <class Tables, class F>
void naming_features_of(Tables& all, const F& f) {
  naming_features(f, [&](std::size_t feature) -> std::string_view {
    for (const auto& one : all.list()) {
      const std::size_t own = one->config().poolings.size();
      if (feature < own) return one->config().name;
      feature -= own;
    }
    return {};
  });
}

}  // namespace deeprec_torch
