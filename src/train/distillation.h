// Distillation: a run learns from a teacher model (key `teacher`), whose shape is known before the plan and whose
// weights are loaded after it, or from its cached logits (key `teacher_logits`), which the verb cache-logits writes.
#pragma once
#include <functional>
#include <memory>

#include "convert/model_folder.h"
#include "data/logit_cache.h"
#include "data/token_alignment.h"
#include "train/setup.h"

namespace athanor {

// Returns the engine's options for the configured teacher, read from its config.json, GGUF file or manifest. Throws
// Error(usage) if it is not a model, or cannot teach the run's model: another vocabulary, too few positions, other
// windows or another temperature.
TeacherOptions teacher_options(const Config&);

// Finds the teacher's files and verifies every byte, each byte on one rank; collective.
VerifiedModel find_teacher(const Config&, const Backend&);

// Returns the cached logits of the run's data; null if none are configured. Throws Error(usage) naming both if the
// logits are of other data.
std::unique_ptr<LogitCache> open_teacher_logits(const Config&, const Dataset& train, const PackingOptions&);

// Returns text for the log: "teacher FOLDER of 1.2M, ", or which cached logits are used; "" without both.
std::string teacher_words(const ModelFolder* teacher, const LogitCache* logits);

// The tokenizers of the run and of a teacher with another tokenizer.
struct TeacherTokens {
  std::shared_ptr<const Tokenizer> run, teacher;
  int32_t bos = -1;          // token with which TokenAligner begins documents
  int64_t length = 0;        // max teacher tokens per window
  std::string text() const;  // value of LogitCacheInfo::teacher_tokens
};
// Loads both tokenizers. `path`: as for load_tokenizer(). The run's tokenizer is in the folder of its shards. Throws
// Error(usage) if one of them is missing or unsuitable.
TeacherTokens teacher_tokens(const std::string& path, const Dataset& train, const ModelFolder& teacher, int32_t bos,
                             int64_t length);

// Describes the cache that `cache-logits` writes for this configuration and teacher. dtype: dtype of stored values.
struct CacheOptions {
  int64_t top_k = 64;
  DType dtype = DType::f16;
  bool common_vocab = false;  // vocabularies of teacher and run may differ in size; the first ids are the same tokens
  std::optional<TeacherTokens> tokens = {};
};
LogitCacheInfo logit_cache_info(const Config&, const ModelFolder& teacher, const Dataset& train, const PackingOptions&,
                                const CacheOptions&);

// Returns an engine of only the teacher, not committed, with the options that a run with this configuration would use
// (in bf16 with FP8 and FP4 recipes). batch: sequences at once, 0: the configured micro-batch, or about kAutoTokens
// tokens.
std::unique_ptr<Engine> teacher_engine(const Config&, const ModelConfig& teacher, const CacheOptions&, int64_t batch,
                                       Backend);

// Writes the missing shards of a cache; this rank writes one of every engine.ranks() shards. Throws Error(usage) if the
// teacher's tokens align with no position of a shard.
struct CacheProgress {
  std::function<void()> batch;  // called after each micro-batch
  // Called after each shard; taught: fraction of its positions that have teacher logits.
  std::function<void(int64_t shard, double taught)> shard;
};
void write_logit_shards(Engine& teacher, const Dataset&, const PackingOptions&, const std::string& folder,
                        const LogitCacheInfo&, const CacheOptions&, const CacheProgress&);

}  // namespace athanor
