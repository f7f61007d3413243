// Charts as SVG inside of a page, without scripts: lines and bars over axes with round ticks. Colours are
// those of the page's style sheet (classes s0 to s7); each chart has its numbers as a table below it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ctr {

/// For text and attributes of HTML.
[[nodiscard]] std::string escaped(std::string_view text);
/// Four significant digits; what is not finite is -.
[[nodiscard]] std::string short_number(double value);

struct chart_series {
  std::string name;
  std::vector<std::pair<double, double>> points;  ///< NaN: left out
};

struct chart {
  std::string title, x, y;  ///< of the axes
  std::vector<chart_series> series{};
  bool has_diagonal = false;  ///< from (0, 0) to (1, 1)
  bool begins_at_zero = false;
};

/// Empty: no series has a point.
[[nodiscard]] std::string line_chart(const chart& of);
/// Bars beside each other for each name, one of each series.
[[nodiscard]] std::string bar_chart(const chart& of, const std::vector<std::string>& names);

}  // namespace ctr
