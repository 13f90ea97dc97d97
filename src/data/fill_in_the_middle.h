// Fill-in-the-middle: some documents of a window are cut in three at random places, and their middle is moved behind
// the rest, so that it is predicted from both sides [Bavarian et al. 2022, "Efficient Training of Language Models to
// Fill in the Middle"]. What a window has of a document is reordered on its own ("context level" there); cuts are
// between tokens. A pure function of the window's place in the order, so any rank reads the same.
#pragma once
#include <cstdint>

#include "data/packing.h"

namespace athanor {

struct FillInTheMiddle {
  double rate = 0;                                // share of documents
  double spm_rate = 0.5;                          // share of these whose suffix comes first
  int32_t prefix = -1, suffix = -1, middle = -1;  // the tokens before these parts
  int64_t eod_id = -1;                            // ends documents, and stays at their end
};

// Which window: part of the key of all its random numbers.
struct WindowKey {
  uint64_t seed = 0;
  int64_t source = 0, epoch = 0, window = 0;
};

// Three tokens are needed for the sentinels, so that a document stays as long as it is: its text loses its last three
// tokens. With p, m and s the parts of what is left, and <P>, <M>, <S> their sentinels, it becomes <P> p <S> s <M> m,
// or <P> <S> s <M> p m. A document's text is what is predicted of it (no BOS token of a packed row), without the token
// that ends it. Texts of less than kLeastText tokens stay as they are, and so do ends and masks.
constexpr int64_t kFimSentinels = 3, kLeastText = kFimSentinels + 1;
void fill_in_the_middle(Window&, const FillInTheMiddle&, const WindowKey&);

}  // namespace athanor
