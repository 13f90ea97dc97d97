// The part of a model's shape that only vision transformers (model_type vit) have: options, checks and keys in files.
#pragma once
#include "config/fields.h"

namespace athanor {

// Rows of the options image_size, patch_size, num_channels, image_mean and image_std.
std::vector<Field<ModelConfig>> image_fields();
// Reads the keys of a vit's config.json that have other names here: the number of classes becomes vocab_size, and the
// tokens of an image become max_position_embeddings, each unless given. Throws Error(usage) if a size is missing.
void adopt_image_keys(Json& model, const std::string& path);
// The part of validate() for these options, of every family.
void validate_images(const ModelConfig&, std::string_view where);
// Adds a vit's keys to a config.json of transformers.
void add_vit_keys(const ModelConfig&, Json& out);

}  // namespace athanor
