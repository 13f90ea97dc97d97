#include "pipeline/program.h"

#include <algorithm>
#include <array>
#include <optional>
#include <ostream>

#include "base/error.h"
#include "pipeline/simulate.h"

namespace athanor {
namespace {

using Kind = StageAction::Kind;

// Sizes of the groups of micro-batches that run through all chunks one after the other [Narayanan et al. 2021, figure
// 4]: at least as many micro-batches as stages, since the last stage's output of a chunk is the first stage's input of
// the next. Sizes differ by at most one.
std::vector<int64_t> group_sizes(const PipelineShape& shape) {
  const int64_t m = shape.micro_batches, groups = std::max<int64_t>(1, m / shape.stages);
  std::vector<int64_t> sizes;
  for (int64_t g = 0; g < groups; ++g) sizes.push_back(m / groups + (g < m % groups ? 1 : 0));
  return sizes;
}

// All forward passes of a stage, or all its backward passes, in which the order of the chunks is reversed.
Actions in_groups(const PipelineShape& shape, const std::vector<int64_t>& groups, Kind kind) {
  Actions list;
  int64_t first = 0;
  for (const int64_t size : groups) {
    for (int c = 0; c < shape.chunks; ++c)
      for (int64_t i = 0; i < size; ++i)
        list.push_back({kind, kind == Kind::forward ? c : shape.chunks - 1 - c, first + i});
    first += size;
  }
  return list;
}

// `ahead` forward passes, then pairs of a forward and a backward pass, then the remaining backward passes.
Actions in_pairs(const Actions& forwards, const Actions& backwards, int64_t ahead) {
  const auto before = std::min(forwards.size(), size_t(ahead));
  Actions list;
  for (size_t k = 0; k < forwards.size() + before; ++k) {
    if (k < forwards.size()) list.push_back(forwards[k]);
    if (k >= before) list.push_back(backwards[k - before]);
  }
  return list;
}

// 1F1B whose backward passes compute only activation gradients. Weight gradients are postponed: stage r postpones those
// of r micro-batches, so that every stage has about as many micro-batches in flight as the first one [Qi et al. 2023,
// "Zero Bubble Pipeline Parallelism", figure 2: ZB-H1].
Actions zb1p(const PipelineShape& shape, int stage) {
  const int64_t m = shape.micro_batches, ahead = std::min<int64_t>(m, shape.stages - 1 - stage);
  Actions list;
  for (int64_t k = 0; k < m + ahead; ++k) {
    if (k < m) list.push_back({Kind::forward, 0, k});
    const int64_t b = k - ahead, w = b - stage;
    if (b >= 0) list.push_back({Kind::input_backward, 0, b});
    if (w >= 0) list.push_back({Kind::weight_backward, 0, w});
  }
  for (int64_t w = std::max<int64_t>(0, m - stage); w < m; ++w) list.push_back({Kind::weight_backward, 0, w});
  return list;
}

// ZB-V [Qi et al. 2024, "Pipeline Parallelism with Controllable Memory"; the order of PyTorch's ScheduleZBVZeroBubble].
// It needs 2 p - 1 micro-batches on p stages; with fewer, actions of missing micro-batches are omitted.
Actions zbv(const PipelineShape& shape, int stage) {
  const int64_t m = shape.micro_batches, p = shape.stages, later = p - stage, enough = std::max(m, 2 * p - 1);
  Actions list;
  std::array<std::array<int64_t, 2>, 3> done = {};  // number of actions of each kind and chunk so far
  const auto add = [&](Kind kind, int chunk) {
    const size_t row = kind == Kind::forward ? 0 : kind == Kind::input_backward ? 1 : 2;
    const int64_t next = done[row][size_t(chunk)]++;
    if (next < m) list.push_back({kind, chunk, next});
  };
  const auto add_all = [&](int chunk) {
    for (const Kind kind : {Kind::forward, Kind::input_backward, Kind::weight_backward}) add(kind, chunk);
  };
  for (int64_t i = 0; i < 2 * later - 1; ++i) add(Kind::forward, 0);
  for (int64_t i = 0; i < stage; ++i) add(Kind::forward, 1), add(Kind::forward, 0);
  for (int64_t i = 0; i < later; ++i) add_all(1);
  while (done[0][1] < enough) {
    if (done[0][0] < enough) add(Kind::forward, 0);
    add(Kind::input_backward, 0), add(Kind::weight_backward, 0);
    add_all(1);
  }
  for (int64_t i = 0; i < stage; ++i) add(Kind::input_backward, 0), add(Kind::input_backward, 1);
  for (int64_t i = 0; i < later; ++i) add(Kind::input_backward, 0), add(Kind::weight_backward, 0);
  for (const int chunk : {1, 0})
    while (done[2][size_t(chunk)] < enough) add(Kind::weight_backward, chunk);
  return list;
}

Actions computations(PipelineSchedule schedule, const PipelineShape& shape, int stage) {
  if (schedule == PipelineSchedule::zb1p) return zb1p(shape, stage);
  if (schedule == PipelineSchedule::zbv) return zbv(shape, stage);
  const int64_t later = shape.stages - 1 - stage;
  const bool interleaved = schedule == PipelineSchedule::interleaved;
  const std::vector<int64_t> groups = interleaved ? group_sizes(shape) : std::vector{shape.micro_batches};
  const Actions forwards = in_groups(shape, groups, Kind::forward),
                backwards = in_groups(shape, groups, Kind::backward);
  switch (schedule) {
    case PipelineSchedule::gpipe:
      return in_pairs(forwards, backwards, shape.micro_batches);
    case PipelineSchedule::one_f_one_b:
      return in_pairs(forwards, backwards, later);
    case PipelineSchedule::interleaved:  // [Narayanan et al. 2021, section 2.2]
      return in_pairs(forwards, backwards, 2 * later + (shape.chunks - 1) * groups.front());
    default:
      CHECK(false, "no such schedule");
      return {};
  }
}

// The send that follows a computation: activations to the next part, or a gradient to the previous one.
std::optional<StageAction> sent_by(const PipelineShape& shape, int stage, const StageAction& a) {
  const int part = shape.part(stage, a.chunk);
  if (a.kind == Kind::forward && part + 1 < shape.parts())
    return StageAction{Kind::send_activation, a.chunk, a.micro_batch};
  if (gives_gradient(a) && part > 0) return StageAction{Kind::send_gradient, a.chunk, a.micro_batch};
  return std::nullopt;
}

std::optional<StageAction> needed_by(const PipelineShape& shape, int stage, const StageAction& a) {
  const int part = shape.part(stage, a.chunk);
  if (a.kind == Kind::forward && part > 0) return StageAction{Kind::receive_activation, a.chunk, a.micro_batch};
  if (gives_gradient(a) && part + 1 < shape.parts()) return StageAction{Kind::receive_gradient, a.chunk, a.micro_batch};
  return std::nullopt;
}

// The receiving stage's action for a send.
StageAction arrival_of(const PipelineShape& shape, int stage, const StageAction& sent) {
  const int part = shape.part(stage, sent.chunk);
  if (sent.kind == Kind::send_activation) return {Kind::receive_activation, shape.chunk_of(part + 1), sent.micro_batch};
  return {Kind::receive_gradient, shape.chunk_of(part - 1), sent.micro_batch};
}

// A stage sends as soon as it has computed. It receives the input of a computation just before it, after all other
// messages that the same stage sent earlier, since messages between two stages arrive in the order in which they were
// sent.
void add_transfers(StepProgram& program) {
  const PipelineShape& shape = program.shape;
  const auto n = size_t(shape.stages);
  std::vector<std::vector<Actions>> arrivals(n, std::vector<Actions>(n));  // indices: receiver, sender
  std::vector<std::vector<size_t>> places(n);  // index of a receiver's arrival among the messages of its sender
  const auto number = [&](const StageAction& a) {
    const int half = a.kind == Kind::receive_gradient ? shape.chunks : 0;
    return size_t((half + a.chunk) * shape.micro_batches + a.micro_batch);
  };
  for (auto& of_stage : places) of_stage.resize(size_t(2 * shape.chunks * shape.micro_batches));
  for (int stage = 0; stage < shape.stages; ++stage)
    for (const StageAction& a : program.stages[size_t(stage)])
      if (const auto sent = sent_by(shape, stage, a)) {
        const auto to = size_t(peer_of(shape, stage, *sent));
        Actions& coming = arrivals[to][size_t(stage)];
        const StageAction arrival = arrival_of(shape, stage, *sent);
        places[to][number(arrival)] = coming.size();
        coming.push_back(arrival);
      }
  for (int stage = 0; stage < shape.stages; ++stage) {
    std::vector<size_t> arrived(n, 0);
    Actions list;
    for (const StageAction& a : program.stages[size_t(stage)]) {
      if (const auto needed = needed_by(shape, stage, a)) {
        const auto from = size_t(peer_of(shape, stage, *needed));
        const Actions& coming = arrivals[size_t(stage)][from];
        for (const size_t last = places[size_t(stage)][number(*needed)]; arrived[from] <= last; ++arrived[from])
          list.push_back(coming[arrived[from]]);
      }
      list.push_back(a);
      if (const auto sent = sent_by(shape, stage, a)) list.push_back(*sent);
    }
    program.stages[size_t(stage)] = std::move(list);
  }
}

int lowest_free(std::vector<bool>& taken) {
  const auto at = std::ranges::find(taken, false);
  const auto number = at - taken.begin();
  if (at == taken.end()) taken.push_back(false);
  taken[size_t(number)] = true;
  return int(number);
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const StageAction& a) {
  constexpr const char* kNames[] = {"receiving the activations",
                                    "forward",
                                    "sending the activations",
                                    "receiving the gradient",
                                    "backward",
                                    "backward of the inputs",
                                    "sending the gradient",
                                    "backward of the weights"};
  return out << kNames[size_t(a.kind)] << " of micro-batch " << a.micro_batch << ", chunk " << a.chunk;
}

StepProgram make_program(PipelineSchedule schedule, PipelineShape shape) {
  CHECK(shape.stages > 0 && shape.chunks > 0 && shape.micro_batches > 0, "a pipeline of ", shape.stages, " stages, ",
        shape.chunks, " chunks and ", shape.micro_batches, " micro-batches");
  shape.v = schedule == PipelineSchedule::zbv;
  CHECK(!shape.v || shape.chunks == 2, "zbv with ", shape.chunks, " chunks; it has 2");
  CHECK(shape.v || shape.chunks == 1 || (schedule == PipelineSchedule::interleaved && shape.stages > 1),
        "chunks are interleaved, on more than one stage");
  StepProgram program{.shape = shape, .stages = {}};
  program.splits_backward = splits_backward(schedule);
  for (int stage = 0; stage < shape.stages; ++stage) program.stages.push_back(computations(schedule, shape, stage));
  add_transfers(program);
  const auto most = shape.micro_batches * shape.chunks;
  while (!ends(program) && program.sends_ahead < most) ++program.sends_ahead;
  return program;
}

int peer_of(const PipelineShape& shape, int stage, const StageAction& a) {
  const bool next = a.kind == Kind::send_activation || a.kind == Kind::receive_gradient;
  CHECK(!computes(a), a, " needs no other stage");
  return shape.stage_of(shape.part(stage, a.chunk) + (next ? 1 : -1));
}

Frames assign_frames(const Actions& list, int chunks) {
  struct Use {
    int number = -1;
    size_t left = 0;  // actions left
  };
  int64_t micro_batches = 0;
  for (const StageAction& a : list) micro_batches = std::max(micro_batches, a.micro_batch + 1);
  std::vector<std::vector<Use>> frames(static_cast<size_t>(chunks));
  for (auto& of_chunk : frames) of_chunk.resize(size_t(micro_batches));
  std::vector<Use> slots(static_cast<size_t>(micro_batches));
  for (const StageAction& a : list) {
    ++frames[size_t(a.chunk)][size_t(a.micro_batch)].left;
    ++slots[size_t(a.micro_batch)].left;
  }
  std::vector<std::vector<bool>> frames_taken(static_cast<size_t>(chunks));
  std::vector<bool> slots_taken;
  const auto number = [](Use& use, std::vector<bool>& taken) {
    if (use.number < 0) use.number = lowest_free(taken);
    return use.number;
  };
  Frames found;
  int now = 0;
  for (const StageAction& a : list) {
    Use &frame = frames[size_t(a.chunk)][size_t(a.micro_batch)], &slot = slots[size_t(a.micro_batch)];
    now += frame.number < 0 ? 1 : 0;
    found.most = std::max(found.most, now);
    found.frame.push_back(number(frame, frames_taken[size_t(a.chunk)]));
    found.slot.push_back(number(slot, slots_taken));
    found.ends.push_back(frame.left == 1);
    if (--frame.left == 0) frames_taken[size_t(a.chunk)][size_t(frame.number)] = false, --now;
    if (--slot.left == 0) slots_taken[size_t(slot.number)] = false;
  }
  for (const auto& taken : frames_taken) found.frames.push_back(int(taken.size()));
  found.slots = int(slots_taken.size());
  return found;
}

}  // namespace athanor
