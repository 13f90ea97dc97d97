// The content of a run's checkpoint and loading it: weights under Hugging Face names, optimizer states, and the scalars
// of the run. The file protocol is in checkpoint/.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "analysis/noise_scale.h"
#include "convert/model_folder.h"
#include "engine/engine.h"
#include "perf/flops.h"
#include "tokenizer/tokenizer.h"

namespace athanor {

// A run that was continued from a checkpoint with another horizon (number of decay steps).
struct RunBranch {
  int64_t step = 0;
  std::string parent;         // folder of that checkpoint
  std::string parent_config;  // hash of that checkpoint's configuration
  int64_t old_decay_iters = 0, new_decay_iters = 0;
};

// All state outside tensors that a resumed run needs; stored in state.json.
struct RunState {
  int64_t step = 0;              // steps done, including skipped ones
  int64_t consumed_samples = 0;  // sequences consumed: position in the sample order
  int64_t nan_steps = 0;
  int64_t micro_batch_size = 0;                       // size chosen by "auto"
  MfuPeak peak;                                       // absent if logging.peak_tflops is configured
  StepState device;                                   // the part of StepState that persists between steps
  std::optional<SpikeWindow> window = std::nullopt;   // present if spikes are detected
  NoiseScale noise_scale = {};                        // averages; zeros without logging.noise_scale
  int64_t rollbacks = 0;                              // number of rollbacks due to spikes
  std::optional<double> reached_loss = std::nullopt;  // validation loss that ended the run by stop_at_loss
  std::vector<RunBranch> branches = {};               // changes of the horizon, oldest first
  // Quantization statistics since the last records, by the layer's name and name_of(Operand); empty if not recorded.
  std::map<std::pair<std::string, std::string>, QuantizeStatistics> quantized = {};
  std::vector<double> routing = {};     // RouterStatistics of all layers since the last records; empty if not recorded
  bool routing_alarm = false;           // the last routing records raised an alarm
  int64_t workers = 0;                  // workers of local updates; 0: no local updates
  std::vector<int64_t> in_flight = {};  // fragments whose outer step is pending
  int64_t foreign_serial = -1;  // checkpoints of the save folder up to this serial number are another run's; on rank 0
};
std::string state_json(const RunState&);
RunState parse_state(const std::string& text, const std::string& where);

struct SaveExtras {
  std::string resolved_config;       // config.resolved.json
  std::string hf_config;             // config.json, for transformers
  std::string tuning;                // tuning.json: choices on which rounding depends; empty: none
  std::string adapter;               // adapter.json, for adapters of a frozen model; empty: no adapters
  std::vector<TokenizerFile> files;  // further files, such as the tokenizer's
};

// Loads only weights, from another program's model or a checkpoint, converted to the engine's dtypes; names are those
// of transformers. Each rank reads only its part of each tensor, block by block. With adapters only the frozen weights
// are loaded. Weights stored in NF4 are quantized tensor by tensor, or copied if the folder has them in NF4.
void load_weights(Engine&, Device&, const ModelFolder&);
// Sets magnitudes of new adapters (lora.variant dora) to the norms of their weights; does nothing if the adapters have
// none.
void init_magnitudes(Engine&, Device&, const ModelFolder&);
// Loads adapters into an engine that has adapters. Throws Error(usage) naming both sides if rank, scale, layers or base
// weights differ; an adapter in PEFT's format does not say what its base weights were.
void load_adapters(Engine&, Device&, const AdapterFolder&, const ModelFolder& base);
// Loads the weights, but no master weights, of a checkpoint, for sampling.
void load_weights(const ParamStore&, Device&, const ModelFolder&);
// Loads weights, optimizer states and scalars of a checkpoint, converted to this run's dtypes, on any number of ranks:
// each rank reads its shard. Verify the folder first. without: name of a state that is not loaded.
RunState load_checkpoint(Engine&, Device&, const std::string& folder, const std::string& without = "");
// Throws Error(usage) if the checkpoint's run had another number of workers than this run, since each worker has its
// own state. 0: no local updates.
void require_same_workers(const RunState&, int64_t workers, const std::string& folder);
// Reads only state.json, which a resumed run needs before it builds an engine.
RunState read_run_state(const std::string& folder);

}  // namespace athanor
