#include "command/sweep_charts.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "base/format.h"
#include "base/json.h"

namespace athanor {
namespace {

constexpr size_t kMostLines = 8;  // number of colours of the page

std::string short_number(double value, const char* format = "%.4g") { return format_text(format, value); }

std::optional<double> number_of(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == 0 && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

// Index in SweepRun::values of the x axis of the loss chart.
std::optional<size_t> axis_of(std::span<const RunLoss> losses) {
  std::optional<size_t> found;
  const std::vector<SweptValue>& first = losses.front().run->values;
  for (size_t i = first.size(); i-- > 0;) {
    bool several = false, numbers = true;
    for (const RunLoss& l : losses) {
      several |= l.run->values[i] != first[i];
      numbers &= number_of(l.run->values[i].value).has_value();
    }
    if (several && numbers && (!found || first[*found].key != "learning_rate")) found = i;
  }
  return found;
}

// Makes the x axis logarithmic if all values are positive.
void make_logarithmic(Chart& chart) {
  for (const ChartLine& line : chart.lines)
    if (std::any_of(line.x.begin(), line.x.end(), [](double x) { return x <= 0; })) return;
  for (ChartLine& line : chart.lines)
    for (double& x : line.x) x = std::log10(x);
  chart.log_x = true;
}

}  // namespace

std::string others_than(const SweepRun& run, size_t axis) {
  std::string out;
  for (size_t i = 0; i < run.values.size(); ++i)
    if (i != axis) out += cat(out.empty() ? "" : ", ", run.values[i].key, "=", run.values[i].value);
  return out;
}

Chart chart_of_losses(std::span<const RunLoss> losses) {
  Chart chart;
  const std::optional<size_t> axis = losses.empty() ? std::nullopt : axis_of(losses);
  if (!axis) return chart;
  chart.x_name = losses.front().run->values[*axis].key;
  chart.title = cat("Loss by ", chart.x_name);
  chart.unit = "nats";
  std::vector<RunLoss> sorted(losses.begin(), losses.end());
  const auto x_of = [&](const RunLoss& l) { return *number_of(l.run->values[*axis].value); };
  std::stable_sort(sorted.begin(), sorted.end(), [&](const RunLoss& a, const RunLoss& b) { return x_of(a) < x_of(b); });
  for (const RunLoss& loss : losses) {  // lines are in the order of the runs, points in the order of the axis
    const std::string label = others_than(*loss.run, *axis);
    const auto same = [&](const ChartLine& l) { return l.label == label; };
    if (std::any_of(chart.lines.begin(), chart.lines.end(), same)) continue;
    ChartLine line{.label = label, .color = int(chart.lines.size() % kMostLines), .x = {}, .y = {}, .dots = true};
    for (const RunLoss& l : sorted)
      if (others_than(*l.run, *axis) == label && std::isfinite(l.loss)) {
        line.x.push_back(x_of(l));
        line.y.push_back(l.loss);
      }
    if (const auto best = std::min_element(line.y.begin(), line.y.end()); best != line.y.end())
      chart.note += cat(chart.note.empty() ? "least: " : "; ", label, label.empty() ? "" : " ", short_number(*best),
                        " at ", short_number(line.x[size_t(best - line.y.begin())]));
    chart.lines.push_back(std::move(line));
  }
  make_logarithmic(chart);
  return chart;
}

std::string coordinate_table(const WidthGroup& group) {
  size_t longest = 10;
  for (const ActivationSize& size : group.sizes.front()) longest = std::max(longest, size.name.size());
  std::string out = group.others.empty() ? "\n" : cat("\n", group.others, "\n");
  out += cat("activation", std::string(longest - 10, ' '));
  for (const std::string& width : group.widths)
    out += cat("  ", std::string(9 - std::min<size_t>(9, width.size()), ' '), width);
  out += "  most / least\n";
  for (size_t i = 0; i < group.sizes.front().size(); ++i) {
    const std::string& name = group.sizes.front()[i].name;
    out += cat(name, std::string(longest - name.size(), ' '));
    for (const auto& sizes : group.sizes) out += cat("  ", short_number(sizes[i].rms, "%9.4g"));
    out += cat("  ", short_number(spread(group.sizes, i), "%12.3f"), "\n");
  }
  return out;
}

Chart chart_of_sizes(const WidthGroup& group) {
  std::vector<size_t> order(group.sizes.front().size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return spread(group.sizes, a) > spread(group.sizes, b); });
  order.resize(std::min(order.size(), kMostLines));
  Chart chart;
  chart.title = cat("Root mean square of activations", group.others.empty() ? "" : ", ", group.others);
  chart.x_name = "hidden_size";
  chart.from_zero = true;
  for (const size_t i : order) {
    ChartLine line{
        .label = group.sizes.front()[i].name, .color = int(chart.lines.size()), .x = {}, .y = {}, .dots = true};
    for (size_t w = 0; w < group.widths.size(); ++w) {
      line.x.push_back(*number_of(group.widths[w]));
      line.y.push_back(group.sizes[w][i].rms);
    }
    chart.note += cat(chart.note.empty() ? "" : "; ", line.label, " ", short_number(spread(group.sizes, i), "%.2f"));
    chart.lines.push_back(std::move(line));
  }
  chart.note = cat("largest ratios over the widths: ", chart.note);
  make_logarithmic(chart);
  return chart;
}

std::string coordinate_json(std::span<const WidthGroup> groups, int64_t steps, double limit) {
  nlohmann::ordered_json json = {{"steps", steps}, {"limit", limit}};
  for (const WidthGroup& group : groups) {
    nlohmann::ordered_json activations;
    for (size_t i = 0; i < group.sizes.front().size(); ++i) {
      nlohmann::ordered_json sizes = nlohmann::ordered_json::array();
      for (const auto& of_width : group.sizes) sizes.push_back(of_width[i].rms);
      activations.push_back({{"name", group.sizes.front()[i].name}, {"rms", sizes}, {"ratio", spread(group.sizes, i)}});
    }
    json["groups"].push_back({{"others", group.others}, {"widths", group.widths}, {"activations", activations}});
  }
  return json_text(json, 1) + "\n";
}

}  // namespace athanor
