// What a run's checkpoint holds and how it is loaded: weights under Hugging Face names, optimizer states, and the
// scalars of the run. The file protocol is in checkpoint/.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "convert/model_folder.h"
#include "engine/engine.h"
#include "metrics/noise_scale.h"
#include "perf/mfu_peak.h"
#include "tokenizer/tokenizer.h"

namespace athanor {

// A run that continued from a checkpoint with another horizon.
struct RunBranch {
  int64_t step = 0;
  std::string parent;         // folder of the checkpoint
  std::string parent_config;  // hash of its configuration
  int64_t old_decay_iters = 0, new_decay_iters = 0;
};

// All state outside tensors that a resumed run needs; state.json.
struct RunState {
  int64_t step = 0;              // steps done, skipped ones included
  int64_t consumed_samples = 0;  // sequences consumed: position in the sample order
  int64_t nan_steps = 0;
  int64_t micro_batch_size = 0;                       // what "auto" chose
  MfuPeak peak;                                       // unless configured
  StepState device;                                   // the part that persists between steps
  std::optional<SpikeWindow> window = std::nullopt;   // if spikes are detected
  NoiseScale noise_scale = {};                        // averages; zeros without log_noise_scale
  int64_t rollbacks = 0;                              // number of rollbacks due to spikes
  std::optional<double> reached_loss = std::nullopt;  // validation loss that ended the run by stop_at_loss
  std::vector<RunBranch> branches = {};               // changes of the horizon, the latest last
  // What quantizing did since the last records, by the layer's name and name_of(Operand); empty without such records.
  std::map<std::pair<std::string, std::string>, QuantizeStatistics> quantized = {};
  std::vector<double> routing = {};  // RouterStatistics of all layers since the last records; empty: no such records
  bool routing_alarm = false;        // the last records of routers were an alarm
  int64_t workers = 0;               // of local updates; 0: none
};
std::string state_json(const RunState&);
RunState parse_state(const std::string& text, const std::string& where);

struct SaveExtras {
  std::string resolved_config;           // config.resolved.json
  std::string hf_config;                 // config.json, for transformers
  std::string tuning;                    // tuning.json: choices that rounding follows from; empty: none
  std::string adapter;                   // adapter.json, of adapters of a frozen model; empty: there are none
  std::vector<TokenizerFile> tokenizer;  // descriptor and the files that it names; empty: unknown
};

// Only weights, from another program's model or a checkpoint, converted to the engine's dtypes; names are those of
// transformers. Each rank reads what it has of each tensor,
// block by block, and nothing else.
// With adapters the folder's weights are the frozen ones, and no others are read; those that are stored in NF4 are
// quantized tensor by tensor, or copied where the folder has them in NF4.
void load_weights(Engine&, Device&, const ModelFolder&);
// Magnitudes of new adapters (lora_variant dora): the norms of the weights that they are for; else nothing.
void init_magnitudes(Engine&, Device&, const ModelFolder&);
// Adapters of an engine that has some. An Error(usage) names both sides where rank, scale or layers differ.
void load_adapters(Engine&, Device&, const AdapterFolder&);
// Loads the weights of a checkpoint without masters, for sampling.
void load_weights(const ParamStore&, Device&, const ModelFolder&);
// Weights, optimizer states and scalars of a checkpoint, converted to this run's dtypes, on any number of ranks: every
// rank reads its shard. Verify the folder first. without: a state that stays as it is.
RunState load_checkpoint(Engine&, Device&, const std::string& folder, const std::string& without = "");
// Throws Error(usage) if the run of a checkpoint had another number of workers than this one: each has a state of its
// own. 0: no local updates.
void require_same_workers(const RunState&, int64_t workers, const std::string& folder);
// Only state.json: what a resume must know before it builds an engine.
RunState read_run_state(const std::string& folder);

}  // namespace athanor
