// athanor export CHECKPOINT OUT: a model for other programs.
#include <cstdio>
#include <memory>

#include "command/command.h"
#include "command/float_names.h"
#include "config/choices.h"
#include "convert/gguf_model.h"
#include "convert/hf_folder.h"
#include "metrics/format.h"

namespace athanor {
namespace {

struct ExportArgs {
  std::string from, to, format = "hf", dtype = "same";
  bool averages = false;
  int64_t threads = 0;
  uint64_t max_shard_bytes = 5'000'000'000;
};

// "same" is the type of the token embedding.
GgufMixture mixture_of(const ExportArgs& args, const ModelFolder& model) {
  if (const auto mixture = mixture_named(args.dtype)) return *mixture;
  const DType dtype = float_named(args.dtype).value_or(model.weights().front().dtype);
  return mixture_of_floats(dtype == DType::f32 ? GgmlType::f32 : dtype == DType::f16 ? GgmlType::f16 : GgmlType::bf16);
}

// No program but this one caps the logits of these families, and none would say that it does not.
void require_known_elsewhere(const ModelConfig& m) {
  if (m.final_logit_softcapping == 0) return;
  throw Error(cat("export: model.final_logit_softcapping is ", m.final_logit_softcapping, "; ", name_of(m.model_type),
                  " has none in transformers and llama.cpp, which would ignore it and compute other logits. Train "
                  "without it to export"),
              Exit::usage);
}

Exit export_model(const ExportArgs& args) {
  const bool gguf = args.format == "gguf";
  if (mixture_named(args.dtype) && !gguf)
    throw Error(cat("export: --dtype ", args.dtype, " is for --format gguf"), Exit::usage);
  const std::optional<CodeBlocks> codes = code_blocks_named(args.dtype);
  if (codes && gguf)
    throw Error(cat("export: --dtype ", args.dtype, " is for --format hf; for gguf take q8_0"), Exit::usage);
  const ModelFolder model(args.from, args.averages);
  require_known_elsewhere(model.config());
  ThreadPool pool(int(args.threads));
  const int64_t bytes = gguf ? write_gguf(model, args.to, {.mixture = mixture_of(args, model), .pool = &pool})
                             : write_hf_folder(model, args.to,
                                               {.dtype = codes ? DType::bf16 : float_named(args.dtype),
                                                .codes = codes,
                                                .max_shard_bytes = int64_t(args.max_shard_bytes)});
  std::printf("%s -> %s: %s of weights\n", model.path().c_str(), args.to.c_str(), format_bytes(size_t(bytes)).c_str());
  return Exit::done;
}

}  // namespace

void add_export(Cli& cli) {
  auto args = std::make_shared<ExportArgs>();
  Verb verb = cli.app.add_verb("export", "write a model for other programs");
  verb.add_option("checkpoint", args->from, "checkpoint, run folder (newest checkpoint) or imported model").required();
  verb.add_option("out", args->to, "new folder (hf) or file (gguf)").required();
  verb.add_option(
          "--format", args->format,
          "hf: a folder that transformers opens; gguf: a file for llama.cpp (gpt2, llama, mistral, qwen2, qwen3)")
      .show_default()
      .check(one_of({"hf", "gguf"}));
  verb.add_flag("--average,--ema", args->averages,
                "the averages of a checkpoint's weights (ema_decay, tail_average_start) instead of the weights");
  std::vector<std::string> dtypes = float_names();
  for (const std::string& name : mixture_names()) dtypes.push_back(name);
  for (const char* name : {"fp8_tensor", "fp8_channel", "fp8_block"}) dtypes.emplace_back(name);
  verb.add_option(
          "--dtype", args->dtype,
          "same: as stored; or f32, bf16, f16; for gguf also llama.cpp's quantized types and mixtures, such as q8_0 or "
          "q4_K_M; for hf also FP8 with one scale per tensor, channel or 128 x 128 block, the rest in bf16")
      .show_default()
      .check(one_of(dtypes));
  verb.add_option("--max-shard-size", args->max_shard_bytes,
                  "hf: largest weight file, in bytes or with a unit (5GB, 500MiB)")
      .show_default()
      .size_in_bytes()
      .check(in_range(int64_t{1}, int64_t{1} << 60));
  verb.add_option("--threads", args->threads, "that quantize; 0: all cores this process may use")
      .show_default()
      .check(non_negative());
  verb.on_chosen([&cli, args] { cli.action = [args] { return export_model(*args); }; });
}

}  // namespace athanor
