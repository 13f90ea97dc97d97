#include "train/distillation.h"

#include <algorithm>
#include <filesystem>

#include "checkpoint/store.h"
#include "convert/gguf_reader.h"
#include "data/loader.h"
#include "infer/evaluate.h"
#include "metrics/format.h"
#include "train/find_together.h"

namespace athanor {
namespace {

[[noreturn]] void refuse(const std::string& text) { throw Error(text, Exit::usage); }

// Which tokens of a window a teacher's position sees.
std::string documents_text(const PackingOptions& o) {
  if (!o.reset_attention_mask && !o.reset_position_ids) return "one per window";
  return cat(
      o.reset_attention_mask ? "reset_attention_mask" : "", o.reset_attention_mask && o.reset_position_ids ? ", " : "",
      o.reset_position_ids ? "reset_position_ids" : "", ", up to ", o.max_documents, ", eod_token_id ", o.eod_id);
}

void require_same_vocab(const std::string& path, const ModelConfig& model, const Config& c, const char* else_what) {
  if (model.vocab_size != c.model.vocab_size)
    refuse(cat(path, " has vocab_size ", model.vocab_size, ", the run's model has ", c.model.vocab_size,
               ": their distributions are not of the same tokens; take a teacher with the run's tokenizer", else_what));
}

void require_positions(const std::string& path, const ModelConfig& model, const Config& c) {
  if (model.max_position_embeddings < c.seq_length)
    refuse(cat(path, " has max_position_embeddings ", model.max_position_embeddings, ", which is less than seq_length ",
               c.seq_length, "; shorten the run's sequences"));
}

TeacherOptions cached_options(const Config& c) {
  return with_context("teacher_logits", [&] {
    const LogitCacheInfo info = read_logit_cache_info(c.teacher_logits);
    const auto require_equal = [&](const char* key, const auto& there, const auto& here) {
      if (there != here)
        refuse(cat(c.teacher_logits, " was made with ", key, " ", there, ", the run has ", here,
                   "; set it to the same, or make another cache with `athanor cache-logits`"));
    };
    require_equal("model.vocab_size", info.vocab_size, c.model.vocab_size);
    require_equal("seq_length", info.seq_length, c.seq_length);
    require_equal("distill_temperature", info.temperature, c.distill_temperature);
    return TeacherOptions{.top_k = info.top_k};
  });
}

TeacherOptions model_options(const Config& c) {
  return with_context("teacher", [&] {
    if (!is_gguf_file(c.teacher)) require_folder(c.teacher);
    const auto newest = newest_valid(c.teacher, nullptr, verify_sizes);  // of a run's folder
    const ModelFolder folder(VerifiedModel{.folder = newest ? newest->path : c.teacher, .elsewhere = true});
    require_same_vocab(folder.path(), folder.config(), c,
                       ", or where they share the ids of the smaller one cache its logits with `athanor cache-logits "
                       "--common-vocab`");
    require_positions(folder.path(), folder.config(), c);
    return TeacherOptions{.model = folder.config()};
  });
}

}  // namespace

TeacherOptions teacher_options(const Config& c) {
  TeacherOptions o = c.teacher.empty() ? cached_options(c) : model_options(c);
  o.loss = c.distill_loss, o.temperature = c.distill_temperature, o.ce_weight = c.distill_ce_weight;
  return o;
}

VerifiedModel find_teacher(const Config& c, const Backend& backend) {
  const auto find = [&](const Verify& verify) { return verified_model(c.teacher, verify).folder; };
  return {.folder = find_together(backend.control, find), .elsewhere = backend.mesh.world().rank() > 0};
}

std::unique_ptr<LogitCache> open_teacher_logits(const Config& c, const Dataset& train, const PackingOptions& packing) {
  if (c.teacher_logits.empty()) return nullptr;
  cached_options(c);  // first: another seq_length is other data too
  return with_context("teacher_logits", [&] {
    auto cache = std::make_unique<LogitCache>(c.teacher_logits);
    const LogitCacheInfo& info = cache->info();
    if (info.data_fingerprint != train.fingerprint())
      refuse(cat(c.teacher_logits, " is of other data (fingerprint ", info.data_fingerprint, ") than train_data (",
                 train.fingerprint(),
                 "): other shards, weights or order of sources; restore them, or make another "
                 "cache with `athanor cache-logits`"));
    if (info.documents != documents_text(packing))
      refuse(cat(c.teacher_logits, " is of windows with documents ", info.documents, ", the run has ",
                 documents_text(packing),
                 " (reset_attention_mask, reset_position_ids); set the keys to the same, or make "
                 "another cache with `athanor cache-logits`"));
    CHECK(info.windows == train.windows(), info.windows, " cached windows of ", train.windows());
    return cache;
  });
}

std::string teacher_words(const ModelFolder* teacher, const LogitCache* logits) {
  if (teacher)
    return cat("teacher ", teacher->path(), " of ", format_count(double(parameter_count(teacher->config()))), ", ");
  if (!logits) return "";
  return cat("teacher_logits ", logits->folder(), ", the ", logits->info().top_k, " largest of ",
             logits->info().teacher, ", ");
}

LogitCacheInfo logit_cache_info(const Config& c, const ModelFolder& teacher, const Dataset& train,
                                const PackingOptions& packing, const CacheOptions& o) {
  if (!o.common_vocab)
    require_same_vocab(teacher.path(), teacher.config(), c,
                       ", or give --common-vocab where they share the ids of the smaller one");
  require_positions(teacher.path(), teacher.config(), c);
  const int64_t vocab = std::min(c.model.vocab_size, teacher.config().vocab_size);
  if (o.top_k > vocab) refuse(cat("--top-k: ", o.top_k, " is more than the ", vocab, " tokens of the vocabulary"));
  return {.teacher = std::filesystem::absolute(teacher.path()).lexically_normal().string(),
          .teacher_fingerprint = weights_fingerprint(teacher),
          .data_fingerprint = train.fingerprint(),
          .documents = documents_text(packing),
          .compute = name_of(engine_options(c, false).recipe.compute),
          .seq_length = c.seq_length,
          .vocab_size = c.model.vocab_size,
          .teacher_vocab_size = teacher.config().vocab_size,
          .top_k = o.top_k,
          .windows = train.windows(),
          .temperature = c.distill_temperature,
          .dtype = o.dtype};
}

std::unique_ptr<Engine> teacher_engine(const Config& c, const ModelConfig& teacher, const CacheOptions& o,
                                       int64_t batch, Backend backend) {
  Config config = c;
  if (low_precision(config.precision)) config.precision = Precision::bf16;
  config.multiple_choice_data.clear();
  EngineOptions options = engine_options(config, false);
  options.zero_stage = 0;  // every rank has all of it
  options.pipeline = {};
  options.sequence_parallel = false;
  if (batch == 0)
    batch = c.micro_batch_size > 0 ? c.micro_batch_size : std::max<int64_t>(1, kAutoTokens / c.seq_length);
  options.micro_batch_size = batch;
  options.global_batch_size = batch * backend.mesh.batches();
  auto engine = std::make_unique<Engine>(teacher, options, backend);
  engine->want_top_logits(o.top_k, std::min(c.model.vocab_size, teacher.vocab_size), float(c.distill_temperature));
  engine->memory().require_fits(memory_capacity(c, backend.device), runtime_reserve(c, backend.device));
  return engine;
}

void write_logit_shards(Engine& teacher, const Dataset& data, const PackingOptions& packing, const std::string& folder,
                        const LogitCacheInfo& info, const CacheProgress& progress) {
  const int64_t rows = teacher.options().micro_batch_size, t = info.seq_length, k = info.top_k;
  HostBatch batch(rows, t, packing);
  for (int64_t shard = teacher.rank(); shard < info.shards(); shard += teacher.ranks()) {
    if (has_logit_shard(folder, info, shard)) continue;
    LogitShardWriter writer(folder, info, shard);
    const int64_t first = shard * info.shard_windows(), end = first + info.windows_in(shard);
    for (int64_t window = first; window < end; window += rows) {
      const int64_t here = std::min(rows, end - window);
      for (int64_t row = 0; row < here; ++row) batch.read(row, data, data.window(window + row), packing);
      set_documents(teacher, batch);
      Engine::TopLogitsOfBatch top = teacher.top_logits(batch.tokens);
      for (int64_t row = 0; row < here; ++row) {
        const auto at = size_t(row * t), size = size_t(t), of_k = size_t(k);
        writer.append(std::span(batch.tokens).subspan(at, size),
                      {.ids = std::span(top.ids).subspan(at * of_k, size * of_k),
                       .values = std::span(top.values).subspan(at * of_k, size * of_k),
                       .rest = std::span(top.rest).subspan(at, size)});
      }
      progress.batch();
    }
    writer.commit();
    progress.shard(shard);
  }
}

}  // namespace athanor
