// Options that models that classify images lack, and options that only they have.
#include "config/config.h"
#include "config/require.h"

namespace athanor {
namespace {

// Throws if an option is set that acts on the tokens or the order of a text.
void refuse_options_of_text(const Config& c) {
  const Config unset;
  const auto refuse = [](bool given, const char* key, const char* why) {
    require(!given, key, ": not supported for model_type vit: ", why, "; leave it out");
  };
  const char* no_documents = "an image has no documents";
  refuse(c.packing != unset.packing, "documents.packing", no_documents);
  refuse(c.reset_attention_mask, "documents.reset_attention_mask", no_documents);
  refuse(c.reset_position_ids, "documents.reset_position_ids", no_documents);
  refuse(c.eod_mask_loss, "documents.eod_mask_loss", no_documents);
  refuse(c.fim_rate > 0, "fim.rate", no_documents);
  refuse(c.total_curriculum_step > 0, "curriculum.total_curriculum_step", "images are not cut into chunks");
  refuse(!c.multi_token_prediction.empty(), "multi_token_prediction", "an image has one target");
  refuse(!c.multiple_choice_data.empty(), "multiple_choice_data", "it has no text to compare");
  refuse(distills(c), c.teacher.empty() ? "distillation.teacher_logits" : "distillation.teacher",
         "distillation compares tokens of a text");
  refuse(c.mup_base_width > 0, "mup_base_width", "muP's rules are those of language models");
  refuse(c.sequence_parallel, "sequence_parallel", "patches are not split among tensor-parallel ranks");
  refuse(c.context_parallel_size > 1, "context_parallel_size", "patches of an image are not split among ranks");
}

}  // namespace

void validate_images(const Config& c) {
  if (reads_images(c.model)) {
    require(c.seq_length == c.model.max_position_embeddings, "seq_length: an image is ",
            c.model.max_position_embeddings, " tokens, got ", c.seq_length, "; leave it out");
    require(c.crop_padding < c.model.image_size, "images.crop_padding: ", c.crop_padding,
            " pixels would leave nothing of an image of ", c.model.image_size, "; take a few pixels");
    return refuse_options_of_text(c);
  }
  const std::string_view family = name_of(c.model.model_type);
  require(!c.horizontal_flip, "images.horizontal_flip: ", family, " reads text; leave it out");
  require(c.crop_padding == 0, "images.crop_padding: ", family, " reads text; leave it out");
}

}  // namespace athanor
