// Line charts as HTML with inline SVG: the drawing scales with the page, labels are HTML text around it. Points are
// reduced to at most kColumns columns with minimum, mean and maximum.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace athanor {

// Escapes text for HTML, including attributes.
std::string html_text(std::string_view text);

struct ChartLine {
  std::string label;
  int color = 0;  // class c0, c1, ... of the page's style
  std::vector<double> x, y;
  bool dashed = false;
  bool dots = false;     // draw each point as a dot, for few points
  size_t mean_over = 1;  // width of the running mean, odd; if above 1, the points themselves are drawn pale
};

// Mean of the `width` (odd) points around each point, of fewer points at the ends; non-finite points are excluded.
std::vector<double> running_mean(const std::vector<double>& y, size_t width);

// A vertical line that marks an event.
struct ChartMark {
  double x = 0;
  std::string kind, text;  // kind: CSS class
};

struct Chart {
  static constexpr int kColumns = 600, kHeight = 240;

  std::string title, unit, note;
  std::vector<ChartLine> lines;
  std::vector<ChartMark> marks;
  bool from_zero = false;
  std::string (*format)(double) = nullptr;  // formats the labels of the y axis; null: four significant digits
  std::string x_name = "step";
  bool log_x = false;  // x values are decimal logarithms; labels show the numbers themselves
};

// Returns "" if no line has a finite point.
std::string chart_html(const Chart&);

// Returns at most `most` + 1 round numbers between low and high.
std::vector<double> ticks(double low, double high, int most);

}  // namespace athanor
