// What a checkpoint of a run holds and how it comes back: weights under Hugging Face names, optimizer states, and the
// small numbers of the run. The file protocol itself is checkpoint/.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "convert/model_folder.h"
#include "engine/engine.h"
#include "perf/mfu_peak.h"
#include "tokenizer/tokenizer.h"

namespace athanor {

// A run that went on from a checkpoint with another horizon.
struct RunBranch {
  int64_t step = 0;
  std::string parent;         // folder of the checkpoint
  std::string parent_config;  // hash of its configuration
  int64_t old_decay_iters = 0, new_decay_iters = 0;
};

// Everything outside tensors that a resumed run needs; state.json.
struct RunState {
  int64_t step = 0;              // steps done, skipped ones included
  int64_t consumed_samples = 0;  // sequences taken from the data: where the sample order goes on
  int64_t nan_steps = 0;
  int64_t micro_batch_size = 0;                       // what "auto" chose
  MfuPeak peak;                                       // unless the config has it
  StepState device;                                   // the part of it that outlives a step
  std::optional<SpikeWindow> window = std::nullopt;   // where spikes are looked for
  int64_t rollbacks = 0;                              // times that the run went back because of spikes
  std::optional<double> reached_loss = std::nullopt;  // validation loss that ended the run by stop_at_loss
  std::vector<RunBranch> branches = {};               // changes of the horizon, the latest last
};
std::string state_json(const RunState&);
RunState parse_state(const std::string& text, const std::string& where);

struct SaveExtras {
  std::string resolved_config;           // config.resolved.json
  std::string hf_config;                 // config.json, for transformers
  std::string tuning;                    // tuning.json: choices that rounding follows from; empty: none
  std::vector<TokenizerFile> tokenizer;  // descriptor and the files that it names; empty: unknown
};

// Weights alone, from another program's model or a checkpoint, converted to the dtype the engine keeps them in; names
// are those of transformers. Read block by block, by every rank its part.
void load_weights(Engine&, Device&, const ModelFolder&);
// The same without masters to refresh from: sampling.
void load_weights(const ParamStore&, Device&, const ModelFolder&);
// Weights, optimizer states and scalars of a checkpoint, converted to the dtypes of this run, on any number of ranks:
// every rank reads its part. The folder is verified before.
RunState load_checkpoint(Engine&, Device&, const std::string& folder);
// state.json alone: what a resume must know before it builds an engine.
RunState read_run_state(const std::string& folder);

}  // namespace athanor
