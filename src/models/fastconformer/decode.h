// The searches: from encoder frames to tokens.
#pragma once

#include <span>
#include <vector>

#include "models/fastconformer/encoder.h"
#include "models/fastconformer/text.h"
#include "models/fastconformer/transducer.h"

namespace speech::fastconformer {

using Emissions = std::vector<Emission>;

// Greedy search of TDT (Xu et al. 2023, arXiv:2304.06795) and RNN-T models as NeMo's greedy_batch
// runs it. All utterances advance together; each gets what it would get alone. `encoder_side` is
// [rows, joint width]. A trace names the stages of the first utterance.
std::vector<Emissions> decode_greedy(Run& run, const Transducer& model, const Tensor& encoder_side,
                                     std::span<const Utterance> utterances);

// Alignment-length synchronous decoding (Saon et al. 2020, "Alignment-Length Synchronous Decoding
// for RNN Transducer") of an RNN-T model, as NeMo runs it.
Emissions decode_alsd(Run& run, const Transducer& model, const Tensor& encoder_side,
                      const Utterance& utterance);

// The best label of each frame, repeats and blanks removed; `ctc` is the head and `encoded`
// [rows, d_model]. Spans are NeMo's, which begin where the token before ended.
std::vector<Emissions> decode_ctc(Run& run, const Linear& ctc, const Tensor& encoded,
                                  std::span<const Utterance> utterances);

}  // namespace speech::fastconformer
