#include "pipeline/draw.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace athanor {
namespace {

using Kind = StageAction::Kind;

int hue(Kind kind) { return kind == Kind::forward ? 210 : kind == Kind::weight_backward ? 35 : 120; }

}  // namespace

std::string schedule_text(const StepProgram& program, const Simulation& simulation, double unit) {
  const auto name = [&](const StageAction& a) {
    const char* letter = a.kind == Kind::forward ? "f" : a.kind == Kind::weight_backward ? "w" : "b";
    return cat(letter, a.micro_batch, program.shape.chunks > 1 ? cat(".", a.chunk) : std::string());
  };
  size_t width = 0;
  for (const auto& stage : simulation.stages)
    for (const TimedAction& t : stage)
      if (computes(t.action)) width = std::max(width, name(t.action).size() + 1);
  const auto columns = size_t(std::lround(simulation.seconds / unit));
  std::string text;
  for (size_t stage = 0; stage < simulation.stages.size(); ++stage) {
    std::vector<std::string> cells(columns, ".");
    for (const TimedAction& t : simulation.stages[stage]) {
      if (!computes(t.action)) continue;
      const auto begin = size_t(std::lround(t.begin / unit)), end = size_t(std::lround(t.end / unit));
      for (size_t i = begin; i < std::min(end, columns); ++i) cells[i] = i == begin ? name(t.action) : "-";
    }
    std::string line = cat("stage ", stage, stage < 10 ? "  " : " ");
    for (const std::string& cell : cells) line += cell + std::string(width - cell.size(), ' ');
    line.resize(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string schedule_svg(const StepProgram& program, const Simulation& simulation) {
  constexpr int kLeft = 70, kTop = 40, kRow = 28, kUnit = 24;  // pixels; kUnit: width of a chunk's forward pass
  const int chunks = program.shape.chunks;
  const auto at = [&](double time) { return cat(kLeft + time * chunks * kUnit); };
  const int height = kTop + kRow * int(simulation.stages.size()) + 10;
  std::string svg =
      cat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", at(simulation.seconds + 1), "\" height=\"", height,
          "\" font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
          "<text x=\"", kLeft, "\" y=\"20\">blue: forward, green: backward, ",
          program.splits_backward ? "orange: its weights' gradients, " : "", "by micro-batch",
          chunks > 1 ? "; darker: later parts of the model" : "", "; stages wait ",
          std::lround(100 * simulation.bubble() / simulation.seconds), " % of the step</text>\n");
  for (size_t stage = 0; stage < simulation.stages.size(); ++stage) {
    const int y = kTop + kRow * int(stage);
    svg += cat("<text x=\"8\" y=\"", y + 18, "\">stage ", stage, "</text>\n");
    for (const TimedAction& t : simulation.stages[stage]) {
      if (!computes(t.action)) continue;
      const int lightness = 85 - 40 * t.action.chunk / chunks;
      svg += cat("<rect x=\"", at(t.begin), "\" y=\"", y, "\" width=\"", (t.end - t.begin) * chunks * kUnit,
                 "\" height=\"", kRow - 4, "\" fill=\"hsl(", hue(t.action.kind), ",60%,", lightness,
                 "%)\" stroke=\"white\"/><text x=\"", at((t.begin + t.end) / 2), "\" y=\"", y + 16,
                 "\" text-anchor=\"middle\">", t.action.micro_batch, "</text>\n");
    }
  }
  return svg + "</svg>\n";
}

}  // namespace athanor
