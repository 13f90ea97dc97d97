// Fill-in-the-middle: some documents of a window are cut in three at random places, and the middle is moved behind the
// rest, so that it is predicted from both sides [Bavarian et al. 2022, "Efficient Training of Language Models to Fill
// in the Middle"]. The places are between tokens, or as in the paper between characters. The part of a document inside
// the window is reordered separately (the paper's "context level"). The result depends only on the window's place in
// the sample order, so it is the same on every rank.
#pragma once
#include <cstdint>
#include <memory>

#include "data/packing.h"
#include "data/part_encoder.h"

namespace athanor {

struct FillInTheMiddle {
  double rate = 0;                                // fraction of documents that are reordered
  double spm_rate = 0.5;                          // fraction of reordered documents whose suffix comes first
  int32_t prefix = -1, suffix = -1, middle = -1;  // sentinel tokens in front of these parts
  int64_t eod_id = -1;                            // end-of-document token; it stays at the end
  std::shared_ptr<PartEncoder> characters = {};   // set: cuts are between characters, else between tokens
};

// Identifies a window; part of the key of all its random numbers.
struct WindowKey {
  uint64_t seed = 0;
  int64_t source = 0, epoch = 0, window = 0;
};

// A document keeps its length: its text loses the last three tokens to make space for the three sentinels. With p, m
// and s the parts of the remaining text, and <P>, <M>, <S> their sentinels, it becomes <P> p <S> s <M> m, or <P> <S> s
// <M> p m. The text of a document is its predicted tokens (without the BOS token of a packed row), without the token
// that ends it. Texts shorter than kLeastText tokens stay as they are; document ends and masks do not change. With cuts
// between characters the parts are encoded anew, and the text loses as many more tokens as the new encoding needs; a
// text that is too short for that is cut between tokens.
constexpr int64_t kFimSentinels = 3, kLeastText = kFimSentinels + 1;
void fill_in_the_middle(Window&, const FillInTheMiddle&, const WindowKey&);

}  // namespace athanor
