#include "report/chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/format.h"

namespace athanor {
namespace {

std::string number(double value, const char* format = "%.6g") { return format_text(format, value); }

// Clamps values so that their sums and differences stay finite; values beyond the limit are drawn at the limit.
constexpr double kFarthest = 1e290;
double near(double v) { return std::clamp(v, -kFarthest, kFarthest); }

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void include(double v) { low = std::min(low, v), high = std::max(high, v); }
  bool empty() const { return low > high; }
};

// Points that fall into one column of the chart.
struct Column {
  int64_t count = 0;
  double sum = 0;
  Range range;
};

class Drawing {
 public:
  explicit Drawing(const Chart& chart) : chart_(chart) {
    for (const ChartLine& line : chart.lines)
      for (size_t i = 0; i < line.x.size(); ++i)
        if (std::isfinite(line.x[i]) && std::isfinite(line.y[i])) {
          x_.include(near(line.x[i]));
          all_y_.push_back(near(line.y[i]));
        }
  }
  bool empty() const { return all_y_.empty(); }

  std::string html() {
    choose_y();
    const auto& f = chart_.format;
    std::string grid, labels;
    for (const double t : ticks(y_.low, y_.high, 5)) {
      const double top = at_y(t);
      grid += cat("<path class=\"grid\" d=\"M0 ", number(top), "H", Chart::kColumns, "\"/>");
      labels += cat("<span class=\"y\" data-at=\"top:", number(100 * top / Chart::kHeight), "%\">",
                    html_text(f ? f(t) : number(t, "%.4g")), "</span>");
    }
    for (const double t : ticks(x_.low, x_.high, 4)) {
      const double left = 100 * at_x(t) / Chart::kColumns;
      if (left > 88) continue;  // space for the axis name
      labels += cat("<span class=\"x\" data-at=\"left:", number(left), "%\">",
                    chart_.log_x ? number(std::pow(10, t), "%.4g") : number(t, "%.10g"), "</span>");
    }
    labels += "<span class=\"x end\" data-at=\"left:100%\">" + html_text(chart_.x_name) + "</span>";
    std::string body = grid;
    for (const ChartMark& mark : chart_.marks)
      if (mark.x >= x_.low && mark.x <= x_.high)
        body += cat("<path class=\"mark ", mark.kind, "\" d=\"M", number(at_x(mark.x)), " 0V", Chart::kHeight,
                    "\"><title>", html_text(mark.text), "</title></path>");
    for (const ChartLine& line : chart_.lines) body += line_svg(line);
    const std::string note = chart_.note.empty() ? "" : cat("<p class=\"note\">", html_text(chart_.note), "</p>");
    const std::string unit = chart_.unit.empty() ? "" : cat(" <small>", html_text(chart_.unit), "</small>");
    return cat("<figure><figcaption>", html_text(chart_.title), unit,
               "<output></output></figcaption>\n<div class=\"plot\" data-x=\"", html_text(chart_.x_name), "\"",
               chart_.log_x ? " data-log-x" : "", " data-x0=\"", number(x_.low, "%.10g"), "\" data-x1=\"",
               number(x_.high, "%.10g"), "\" data-y0=\"", number(y_.low, "%.9g"), "\" data-y1=\"",
               number(y_.high, "%.9g"), "\">", labels, "<svg viewBox=\"0 0 ", Chart::kColumns, " ", Chart::kHeight,
               "\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"", html_text(chart_.title), "\">", body,
               "</svg></div>", note, "</figure>\n");
  }

 private:
  // Extreme spikes would flatten the rest of the curve: if the maximum is more than three times as far away as the 99th
  // percentile, the y axis is cut a little above that percentile. Clipped values touch the frame.
  void choose_y() {
    std::sort(all_y_.begin(), all_y_.end());
    const auto part = [&](double share) { return all_y_[size_t(share * double(all_y_.size() - 1))]; };
    y_ = {all_y_.front(), all_y_.back()};
    const double usual = part(0.99) - y_.low;
    if (usual > 0 && y_.high - y_.low > 3 * usual) y_.high = y_.low + 1.5 * usual;
    if (chart_.from_zero) y_.include(0);
    if (y_.high <= y_.low) {
      const double space = y_.low == 0 ? 1 : 0.05 * std::fabs(y_.low);
      y_ = {y_.low - space, y_.high + space};
    }
    const double space = 0.04 * (y_.high - y_.low);
    if (!(chart_.from_zero && y_.low == 0)) y_.low -= space;
    y_.high += space;
    if (x_.high <= x_.low) x_ = {x_.low - 1, x_.high + 1};
  }

  double at_x(double x) const { return (x - x_.low) / (x_.high - x_.low) * Chart::kColumns; }
  double at_y(double y) const { return std::clamp((y_.high - y) / (y_.high - y_.low), 0.0, 1.0) * Chart::kHeight; }
  static std::string point(double x, double y) { return cat(number(x, "%.1f"), " ", number(y, "%.1f")); }

  std::string line_svg(const ChartLine& line) const {
    if (line.mean_over <= 1) return curve_svg(line, "line");
    ChartLine mean = line;
    mean.y = running_mean(line.y, line.mean_over);
    return curve_svg(line, "raw") + curve_svg(mean, "line");
  }

  // The page's script reads values from elements of class "line".
  std::string curve_svg(const ChartLine& line, const char* kind) const {
    std::vector<Column> columns(Chart::kColumns + 1);
    size_t filled = 0, points = 0;
    for (size_t i = 0; i < line.x.size(); ++i) {
      if (!std::isfinite(line.x[i]) || !std::isfinite(line.y[i])) continue;
      Column& c = columns[size_t(std::lround(at_x(near(line.x[i]))))];
      filled += c.count == 0;
      ++points;
      ++c.count;
      c.sum += near(line.y[i]);
      c.range.include(near(line.y[i]));
    }
    std::string upper, lower, mean, dots;
    for (size_t i = 0; i < columns.size(); ++i) {
      const Column& c = columns[i];
      if (c.count == 0) continue;
      const std::string m = point(double(i), at_y(c.sum / double(c.count)));
      mean += cat(mean.empty() ? "M" : "L", m);
      dots += cat("M", m, "h.01");  // a zero-length line with round caps is a dot
      upper += cat(upper.empty() ? "M" : "L", point(double(i), at_y(c.range.high)));
      lower = cat("L", point(double(i), at_y(c.range.low)), lower);
    }
    const std::string color = cat("c", line.color);
    std::string out;
    const bool is_line = std::string_view(kind) == "line";
    if (points > 2 * filled && (line.mean_over <= 1 || !is_line))
      out += cat("<path class=\"band ", color, "\" d=\"", upper, lower, "Z\"/>");
    const std::string label = is_line ? cat(" data-label=\"", html_text(line.label), "\"") : "";
    out += cat("<path class=\"", kind, " ", color, line.dashed ? " dashed" : "", "\"", label, " d=\"", mean, "\"/>");
    if (line.dots || (filled == 1 && is_line)) out += cat("<path class=\"dots ", color, "\" d=\"", dots, "\"/>");
    return mean.empty() ? "" : out;
  }

  const Chart& chart_;
  Range x_, y_;
  std::vector<double> all_y_;
};

}  // namespace

std::string html_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else {
      out += c;
    }
  }
  return out;
}

// Every window is the sum of a suffix and a prefix of blocks of `width` points, so the cost does not depend on the
// width, and no large value is added and later subtracted.
std::vector<double> running_mean(const std::vector<double>& y, size_t width) {
  struct Sum {
    double value = 0, count = 0;
    Sum operator+(const Sum& other) const { return {value + other.value, count + other.count}; }
  };
  CHECK(width % 2 == 1, "a running mean over ", width, " points");
  const size_t n = y.size(), half = width / 2;
  std::vector<Sum> from_first(n), to_last(n);
  const auto at = [&](size_t i) { return std::isfinite(y[i]) ? Sum{near(y[i]), 1} : Sum{}; };
  for (size_t i = 0; i < n; ++i) from_first[i] = i % width == 0 ? at(i) : from_first[i - 1] + at(i);
  for (size_t i = n; i-- > 0;) to_last[i] = i + 1 == n || (i + 1) % width == 0 ? at(i) : at(i) + to_last[i + 1];
  std::vector<double> mean(n, std::numeric_limits<double>::quiet_NaN());
  for (size_t i = 0; i < n; ++i) {
    if (!std::isfinite(y[i])) continue;
    const size_t first = i - std::min(i, half), last = std::min(n - 1, i + half);
    const Sum sum = first / width != last / width ? to_last[first] + from_first[last]
                    : first % width == 0          ? from_first[last]
                                                  : to_last[first];
    mean[i] = sum.value / sum.count;
  }
  return mean;
}

std::vector<double> ticks(double low, double high, int most) {
  CHECK(most > 0, "ticks");
  if (!(high > low) || !std::isfinite(high - low)) return {};
  double step = std::pow(10, std::floor(std::log10((high - low) / most)));
  for (const double factor : {2.0, 2.5, 2.0})  // steps of 1, 2, 5, 10 times a power of ten
    if ((high - low) / step > most) step *= factor;
  std::vector<double> all;
  for (double k = std::ceil(low / step); k * step <= high && all.size() <= size_t(most); ++k)
    all.push_back(k == 0 ? 0 : k * step);
  return all;
}

std::string chart_html(const Chart& chart) {
  Drawing drawing(chart);
  return drawing.empty() ? "" : drawing.html();
}

}  // namespace athanor
