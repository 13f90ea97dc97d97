#include "command/plan.h"

#include <algorithm>
#include <cstdio>

#include "base/file.h"
#include "base/format.h"
#include "pipeline/draw.h"
#include "plan/rank_plan.h"
#include "train/setup.h"

namespace athanor {
namespace {

std::string layout_text(const Stage& stage) {
  std::string text;
  for (const ModelPart& part : stage.parts()) text += cat(text.empty() ? "" : ", ", part.end - part.first);
  return text;
}

}  // namespace

void print_pipeline(const Config& config, const Backend& backend, const Engine& first, const PipelineDrawing& drawing) {
  const Stage& stage = first.stage();
  const StepProgram& program = stage.program();
  const PassTimes times;  // default: backward takes twice as long as forward
  const Simulation step = simulate(program, times);
  std::printf("pipeline          %d stages, %s: blocks of the parts %s; stages wait %.1f %% of a step\n",
              stage.stages(), std::string(name_of(config.pipeline_schedule)).c_str(), layout_text(stage).c_str(),
              100 * step.bubble() / step.seconds);
  for (int s = 0; s < stage.stages(); ++s) {
    ProcessMesh mesh = absent_mesh(first_mesh_sizes(config), s);
    Engine engine(config.model, first.options(), {backend.device, backend.ops, mesh, backend.tuning});
    const Frames& frames = engine.stage().frames();
    std::printf("stage %-3d         %s, of which activations %s; %d micro-batch%s under way at most\n", s,
                format_bytes(engine.memory().total()).c_str(),
                format_bytes(engine.memory().total(MemoryKind::activations)).c_str(), frames.slots,
                frames.slots == 1 ? "" : "es");
  }
  if (!drawing.svg.empty()) write_file(drawing.svg, schedule_svg(program, step));
  if (!drawing.text) return;
  const double unit = 1.0 / stage.chunks();  // duration of the forward pass of one chunk
  print("\n", schedule_text(program, step, unit), "\n");
}

}  // namespace athanor
