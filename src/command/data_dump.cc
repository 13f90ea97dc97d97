// athanor data dump CONFIG OUT: writes the exact rows that a run trains on, in its order, to compare with other
// programs.
#include <memory>

#include "checkpoint/safetensors_writer.h"
#include "command/command.h"
#include "command/machine.h"
#include "convert/new_folder.h"
#include "data/loader.h"
#include "train/setup.h"

namespace athanor {
namespace {

struct DataSamplesArgs {
  std::string config, out;
  std::vector<std::string> overrides;
  int64_t first = 0, steps = 1;
};

constexpr int64_t kMostTokens = int64_t{1} << 28;  // 2 GiB in the file

Exit write_samples(const DataSamplesArgs& args) {
  require_new_path(args.out);  // a token shard named by mistake is not replaced
  const Config config = load_config_logged(args.config, args.overrides);
  const Dataset data = open_training_data(config);
  PackingOptions packing = packing_options(config, data);
  if (config.rampup_batch_size.start > 0)
    throw Error(
        "data dump: rampup_batch_size is not supported, since all steps of the file need one size; leave it out",
        Exit::usage);
  const int64_t rows = config.global_batch_size, t = config.seq_length;
  if (args.steps > kMostTokens / rows / std::max(t, packing.image_pixels))
    throw Error(cat("--steps: ", args.steps, " steps of ", rows, " x ", t, " tokens are more than the ", kMostTokens,
                    " that one file may hold; write several with --first"),
                Exit::usage);
  HostBatch batch(args.steps * rows, t, packing);
  const SampleOrder order{.seed = uint64_t(config.seed)};
  for (int64_t row = 0; row < args.steps * rows; ++row) {
    const int64_t sample = args.first * rows + row;
    packing.chunk_length = chunk_length_at(config, sample);
    batch.read(row, data, data.locate(order, sample), packing);
    batch.augment(row, data, augmentation(config), sample);
  }
  const Shape shape{args.steps, rows, t};
  std::vector<TensorData> tensors = {tensor_data("tokens", {batch.tokens.data(), DType::i32, shape}),
                                     tensor_data("targets", {batch.targets.data(), DType::i32, shape})};
  if (packing.varies()) {
    static_assert(sizeof(Document) == 2 * sizeof(int32_t), "begin and length");
    tensors.push_back(tensor_data("positions", {batch.positions.data(), DType::i32, shape}));
    tensors.push_back(
        tensor_data("documents", {batch.documents.data(), DType::i32, {args.steps, rows, packing.table_rows(), 2}}));
  }
  if (packing.image_pixels > 0)
    tensors.push_back(
        tensor_data("pixels", {batch.pixels.data(), DType::u8, {args.steps, rows, packing.image_pixels}}));
  save_safetensors(args.out, tensors);
  print(args.out, ": ", args.steps, " steps of ", rows, " x ", t, " tokens\n");
  return Exit::done;
}

}  // namespace

void add_data_samples(Cli& cli, Verb data) {
  auto args = std::make_shared<DataSamplesArgs>();
  Verb verb = data.add_verb("dump", "write a run's training sequences in order");
  verb.add_option("config", args->config, "configuration file of the run").required();
  verb.add_option(
          "out", args->out,
          "new safetensors file: tokens and targets, int32 [steps, global_batch_size, seq_length], target "
          "-1 is ignored; with packed documents also positions and spans, of images also pixels (data/README.md)")
      .required();
  verb.add_option("--set", args->overrides, "override a key: a.b=value (may repeat)").one_value();
  verb.add_option("--first", args->first, "steps to skip").show_default().check(in_range(int64_t{0}, int64_t{1} << 40));
  verb.add_option("--steps", args->steps, "optimizer steps")
      .show_default()
      .check(in_range(int64_t{1}, int64_t{1} << 40));
  verb.on_chosen([&cli, args] { cli.action = [args] { return write_samples(*args); }; });
}

}  // namespace athanor
