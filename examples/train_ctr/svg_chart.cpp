#include "svg_chart.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>

namespace ctr {

namespace {

constexpr double width = 560, height = 300, left = 64, right = 12, top = 12, bottom = 44;

struct range {
  double least = std::numeric_limits<double>::infinity(), most = -least;

  void add(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
  /// With some width, also where all values are one.
  [[nodiscard]] range widened() const {
    if (most > least) return *this;
    const double by = least == 0 ? 1 : std::abs(least) / 10;
    return {least - by, most + by};
  }
};

/// A step of 1, 2 or 5 times a power of ten, about four in a range.
double tick_step(const range& of) {
  const double rough = (of.most - of.least) / 4;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (rough <= step * power) return step * power;
  }
  return 10 * power;
}

class frame {
 public:
  frame(range x, range y) : x_(x), y_(y) {}
  [[nodiscard]] double across(double x) const {
    return left + (x - x_.least) / (x_.most - x_.least) * (width - left - right);
  }
  [[nodiscard]] double up(double y) const {
    return height - bottom - (y - y_.least) / (y_.most - y_.least) * (height - top - bottom);
  }
  [[nodiscard]] const range& x() const { return x_; }
  [[nodiscard]] const range& y() const { return y_; }

 private:
  range x_, y_;
};

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return "<text x=\"" + short_number(x) + "\" y=\"" + short_number(y) + "\" text-anchor=\"" + anchor + "\">" +
         escaped(text) + "</text>";
}
std::string line_at(double x1, double y1, double x2, double y2, const char* style) {
  return std::string("<line class=\"") + style + "\" x1=\"" + short_number(x1) + "\" y1=\"" +
         short_number(y1) + "\" x2=\"" + short_number(x2) + "\" y2=\"" + short_number(y2) + "\"/>";
}
std::string style_of(std::size_t series) { return "s" + std::to_string(series % 8); }

std::string axis_names(const chart& of) {
  return text_at((left + width - right) / 2, height - 6, "middle", of.x) + "<text transform=\"translate(14 " +
         short_number((top + height - bottom) / 2) + ") rotate(-90)\" text-anchor=\"middle\">" +
         escaped(of.y) + "</text>";
}
std::string y_ticks(const frame& in) {
  std::string made;
  const double step = tick_step(in.y());
  for (double y = std::ceil(in.y().least / step) * step; y <= in.y().most + step * 1e-9; y += step) {
    made += line_at(left, in.up(y), width - right, in.up(y), "grid");
    made += text_at(left - 6, in.up(y) + 4, "end", short_number(std::abs(y) < step * 1e-9 ? 0 : y));
  }
  return made;
}

/// The chart with its legend, and its numbers.
std::string figure(const chart& of, const std::string& drawing, const std::string& head,
                   const std::string& body) {
  std::string legend;
  for (std::size_t s = 0; of.series.size() > 1 && s < of.series.size(); ++s) {
    legend += "<span><i class=\"" + style_of(s) + "\"></i>" + escaped(of.series[s].name) + "</span>";
  }
  return "<figure><figcaption>" + escaped(of.title) + "</figcaption><svg viewBox=\"0 0 " +
         short_number(width) + ' ' + short_number(height) + "\" role=\"img\" aria-label=\"" +
         escaped(of.title) + "\">" + drawing + "</svg>" +
         (legend.empty() ? "" : "<p class=\"legend\">" + legend + "</p>") +
         "<details><summary>numbers</summary><div class=\"wide\" tabindex=\"0\" role=\"region\" "
         "aria-label=\"numbers of " +
         escaped(of.title) + "\"><table><thead><tr>" + head + "</tr></thead><tbody>" + body +
         "</tbody></table></div></details></figure>\n";
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string made;
  for (const char c : text) {
    switch (c) {
      case '&':
        made += "&amp;";
        break;
      case '<':
        made += "&lt;";
        break;
      case '>':
        made += "&gt;";
        break;
      case '"':
        made += "&quot;";
        break;
      default:
        made += c;
    }
  }
  return made;
}

std::string short_number(double value) {
  if (!std::isfinite(value)) return "-";
  char text[32];
  const bool is_whole = std::abs(value) < 1e9 && value == std::floor(value);
  std::snprintf(text, sizeof text, is_whole ? "%.0f" : "%.4g", value);
  return text;
}

std::string line_chart(const chart& of) {
  constexpr std::size_t most_numbers = 100;  // of a series in the table
  range x, y;
  for (const chart_series& series : of.series) {
    for (const auto& [at, value] : series.points) {
      if (!std::isfinite(at) || !std::isfinite(value)) continue;
      x.add(at);
      y.add(value);
    }
  }
  if (x.most < x.least) return {};
  if (of.begins_at_zero) y.add(0);
  if (of.has_diagonal) {
    for (range* side : {&x, &y}) {
      side->add(0);
      side->add(1);
    }
  }
  const frame in(x.widened(), y.widened());
  std::string drawing = y_ticks(in);
  const double step = tick_step(in.x());
  for (double at = std::ceil(in.x().least / step) * step; at <= in.x().most + step * 1e-9; at += step) {
    drawing += text_at(in.across(at), height - bottom + 18, "middle",
                       short_number(std::abs(at) < step * 1e-9 ? 0 : at));
  }
  drawing += axis_names(of);
  if (of.has_diagonal) drawing += line_at(in.across(0), in.up(0), in.across(1), in.up(1), "diagonal");
  std::string body;
  for (std::size_t s = 0; s < of.series.size(); ++s) {
    const auto& points = of.series[s].points;
    const std::size_t every = std::max<std::size_t>(1, (points.size() + most_numbers - 1) / most_numbers);
    std::string path, dots;
    std::size_t drawn = 0;
    bool joins = false;
    for (std::size_t p = 0; p < points.size(); ++p) {
      const auto [at, value] = points[p];
      if (!std::isfinite(at) || !std::isfinite(value)) {
        joins = false;
        continue;
      }
      const std::string place = short_number(in.across(at)) + ' ' + short_number(in.up(value));
      path += (joins ? 'L' : 'M') + place;
      joins = true;
      ++drawn;
      if (points.size() <= 40) {
        dots += "<circle class=\"" + style_of(s) + "\" cx=\"" + short_number(in.across(at)) + "\" cy=\"" +
                short_number(in.up(value)) + "\" r=\"3\"><title>" + short_number(at) + ": " +
                short_number(value) + "</title></circle>";
      }
      if (p % every == 0 || p + 1 == points.size()) {
        body += "<tr><th>" + escaped(of.series[s].name) + "</th><td>" + short_number(at) + "</td><td>" +
                short_number(value) + "</td></tr>";
      }
    }
    if (drawn > 1) drawing += "<path class=\"" + style_of(s) + "\" d=\"" + path + "\"/>";
    drawing += dots;
  }
  return figure(of, drawing, "<th></th><th>" + escaped(of.x) + "</th><th>" + escaped(of.y) + "</th>", body);
}

std::string bar_chart(const chart& of, const std::vector<std::string>& names) {
  if (names.empty() || of.series.empty()) return {};
  range y;
  y.add(0);
  for (const chart_series& series : of.series) {
    for (const auto& [at, value] : series.points) {
      if (std::isfinite(value)) y.add(value);
    }
  }
  const frame in({0, static_cast<double>(names.size())}, y.widened());
  std::string drawing = y_ticks(in), head = "<th></th>", body;
  for (const chart_series& series : of.series) head += "<th>" + escaped(series.name) + "</th>";
  const double share = 0.8 / static_cast<double>(of.series.size());
  const std::size_t every = (names.size() + 9) / 10;
  for (std::size_t n = 0; n < names.size(); ++n) {
    body += "<tr><th>" + escaped(names[n]) + "</th>";
    for (std::size_t s = 0; s < of.series.size(); ++s) {
      const double value = of.series[s].points[n].second;
      body += "<td>" + short_number(value) + "</td>";
      if (!std::isfinite(value)) continue;
      const double from = in.across(static_cast<double>(n) + 0.1 + share * static_cast<double>(s));
      const double high = in.up(std::max(value, 0.0)), low = in.up(std::min(value, 0.0));
      drawing += "<rect class=\"" + style_of(s) + "\" x=\"" + short_number(from) + "\" y=\"" +
                 short_number(high) + "\" width=\"" + short_number(in.across(share) - in.across(0)) +
                 "\" height=\"" + short_number(low - high) + "\"><title>" + escaped(names[n]) + ": " +
                 short_number(value) + "</title></rect>";
    }
    body += "</tr>";
    if (n % every == 0) {
      drawing += text_at(in.across(static_cast<double>(n) + 0.5), height - bottom + 18, "middle", names[n]);
    }
  }
  drawing += line_at(left, in.up(0), width - right, in.up(0), "axis") + axis_names(of);
  return figure(of, drawing, head, body);
}

}  // namespace ctr
