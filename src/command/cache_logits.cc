// athanor cache-logits CONFIG TEACHER: stores the teacher's top-k logits on a run's data, for its key teacher_logits.
#include <algorithm>
#include <chrono>
#include <memory>

#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "command/command.h"
#include "command/machine.h"
#include "train/distillation.h"
#include "train/snapshot.h"

namespace athanor {
namespace {

struct CacheArgs {
  std::string config, teacher, tokenizer, dtype = "f16";
  std::vector<std::string> overrides;
  int64_t top_k = 64, batch = 0, bos = -1, length = 0;
  bool common_vocab = false;
  RankFlags ranks;
};

// The run's configuration, changed so that every rank holds the whole teacher.
Config config_of(const CacheArgs& args, int rank) {
  Config config = load_config_logged(args.config, args.overrides, rank);
  if (config.teacher_logits.empty())
    throw Error(
        "cache-logits: distillation.teacher_logits: expected the folder to write, got none; set it in the "
        "configuration, or with --set distillation.teacher_logits=FOLDER",
        Exit::usage);
  config.tensor_parallel_size = config.context_parallel_size = config.pipeline_parallel_size = 1;
  config.expert_parallel_size = config.data_parallel_replicate_size = 1;
  config.data_parallel_shard_size = config.zero_stage = config.local_steps = 0;
  config.optimizer = RuleName::adamw, config.param_groups.clear();  // an optimizer that does not require shards
  return config;
}

int64_t missing_windows(const std::string& folder, const LogitCacheInfo& info) {
  int64_t missing = 0;
  for (int64_t shard = 0; shard < info.shards(); ++shard)
    if (!has_logit_shard(folder, info, shard)) missing += info.windows_in(shard);
  return missing;
}

// Called on rank 0 before work begins.
void begin(const std::string& folder, const LogitCacheInfo& info) {
  begin_logit_cache(folder, info);
  const int64_t needed = missing_windows(folder, info) * info.record_bytes();
  const std::optional<int64_t> free = free_bytes(folder);
  if (free && *free < needed)
    throw Error(cat(folder, ": ", format_bytes(uint64_t(needed)), " are needed, but only ",
                    format_bytes(uint64_t(*free)), " are free; use a smaller --top-k, or another folder"),
                Exit::usage);
  log::info(folder, ": ", info.windows, " windows of ", info.seq_length, " tokens, ",
            format_bytes(uint64_t(info.windows * info.record_bytes())), " in ", info.shards(), " shard(s), of which ",
            format_bytes(uint64_t(needed)), " are missing");
}

Exit cache_logits(const CacheArgs& args) {
  const RankInfo ranks = find_ranks(args.ranks, process_environment());
  const Config config = config_of(args, ranks.rank);
  require_language_model(config.model, "cache-logits");
  Machine machine(config, ranks);
  machine.run([&] {
    const Backend backend = machine.backend();
    CacheOptions options{
        .top_k = args.top_k, .dtype = args.dtype == "f32" ? DType::f32 : DType::f16, .common_vocab = args.common_vocab};
    const Dataset data = open_training_data(config);
    const PackingOptions packing = packing_options(config, data);
    const ModelFolder teacher(args.teacher);
    if (!args.tokenizer.empty())  // a run's folder has the tokenizer in its checkpoints
      options.tokens = teacher_tokens(args.tokenizer == args.teacher ? teacher.path() : args.tokenizer, data, teacher,
                                      int32_t(args.bos), args.length);
    const LogitCacheInfo info = logit_cache_info(config, teacher, data, packing, options);
    const std::string& folder = config.teacher_logits;
    if (ranks.rank == 0) begin(folder, info);
    if (backend.control) backend.control->barrier();
    // Runs a collective, so that no rank waits for another for longer than one micro-batch takes.
    const auto any_works = [&](bool mine) {
      int32_t any = mine ? 1 : 0;
      if (backend.control) backend.control->all_reduce({&any, DType::i32, {1}}, Reduce::max, Stream::compute);
      return any != 0;
    };
    if (missing_windows(folder, info) > 0) {
      const auto engine = teacher_engine(config, teacher.config(), options, args.batch, backend);
      engine->commit();
      load_weights(*engine, backend.device, teacher);
      auto last = std::chrono::steady_clock::now();
      const auto log_shard = [&](int64_t shard, double taught) {
        const auto now = std::chrono::steady_clock::now();
        const double seconds = std::chrono::duration<double>(now - std::exchange(last, now)).count();
        log::info(
            logit_shard(folder, shard), " is written, ",
            format_count(double(info.windows_in(shard) * info.seq_length) / seconds), " tokens/s on this rank",
            options.tokens ? cat("; ", format_percent(taught), " of its positions end where the teacher's do") : "");
      };
      write_logit_shards(*engine, data, packing, folder, info, options,
                         {.batch = [&] { any_works(true); }, .shard = log_shard});
    }
    while (any_works(false)) {
    }
    if (ranks.rank == 0)
      print(folder, ": the ", info.top_k, " largest of ",
            options.tokens ? info.teacher_vocab_size : std::min(info.vocab_size, info.teacher_vocab_size),
            " logits at each of ", format_count(double(info.windows * info.seq_length)), " positions, ",
            format_bytes(uint64_t(info.windows * info.record_bytes())), "\n");
  });
  return Exit::done;
}

}  // namespace

void add_cache_logits(Cli& cli) {
  auto args = std::make_shared<CacheArgs>();
  Verb verb = cli.app.add_verb("cache-logits", "cache a teacher's top logits on a run's data for distillation");
  verb.add_option("config", args->config,
                  "configuration file of the run, whose distillation.teacher_logits is the folder to write")
      .required();
  verb.add_option("teacher", args->teacher,
                  "teacher: checkpoint, run folder, Hugging Face folder or GGUF file with the run's vocabulary, or "
                  "with any vocabulary and --teacher-tokenizer")
      .required();
  verb.add_option("--set", args->overrides, "override a key: a.b=value (may repeat)").one_value();
  verb.add_option("--top-k", args->top_k, "logits kept per position; the rest are stored as one sum")
      .show_default()
      .check(in_range(int64_t{1}, int64_t{1} << 30));
  verb.add_option("--dtype", args->dtype, "type of the stored logits, which are relative to the largest: f16 or f32")
      .show_default()
      .check(one_of({"f16", "f32"}));
  verb.add_option("--batch", args->batch, "sequences per batch; 0: micro_batch_size, or about 8,192 tokens")
      .show_default()
      .check(in_range(0, 65536));
  verb.add_flag("--common-vocab", args->common_vocab,
                "teacher and run differ in vocab_size but share the ids of the smaller one (padding, added tokens): "
                "keep the teacher's distribution over the common ids");
  verb.add_option(
      "--teacher-tokenizer", args->tokenizer,
      "tokenizer file or folder of a teacher whose tokens differ from the run's, for distillation.loss uld: the "
      "teacher reads the text of each window and teaches at positions where both tokenizations have a boundary");
  verb.add_option("--teacher-length", args->length,
                  "with --teacher-tokenizer: maximum number of teacher tokens per window; 0: seq_length")
      .show_default()
      .check(in_range(int64_t{0}, int64_t{1} << 30))
      .needs("--teacher-tokenizer");
  verb.add_option("--teacher-bos", args->bos,
                  "with --teacher-tokenizer: the teacher's beginning-of-text token; -1: none")
      .show_default()
      .check(in_range(int64_t{-1}, int64_t{1} << 30))
      .needs("--teacher-tokenizer");
  add_rank_flags(verb, args->ranks);
  verb.on_chosen([&cli, args] { cli.action = [args] { return cache_logits(*args); }; });
}

}  // namespace athanor
