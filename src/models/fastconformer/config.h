// Hyper-parameters of a FastConformer recognizer, as the keys of its GGUF file give them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace speech {
class GgufFile;
class GgufWriter;
}  // namespace speech

namespace speech::fastconformer {

// Log-mel features (NeMo, AudioToMelSpectrogramPreprocessor).
struct FrontendConfig {
  int sample_rate = 16000;
  int n_fft = 512;
  int hop_length = 160;
  int n_mels = 80;
  float preemphasis = 0.97f;
  float log_guard = 0x1p-24f;  // added before the logarithm
  float std_guard = 1e-5f;     // added to the standard deviation
};

// FastConformer encoder (Rekesh et al. 2023, arXiv:2305.05084; NeMo, ConformerEncoder).
struct EncoderConfig {
  int d_model = 0;
  int num_layers = 0;
  int num_heads = 0;
  int conv_kernel = 0;         // odd
  int subsampling_factor = 8;  // a power of two
  float norm_eps = 1e-5f;
  float pos_base = 10000.0f;
  float xscale = 1.0f;
  float ff_factor = 0.5f;  // what a feed-forward adds to the residual stream
  bool use_bias = false;
  // Attention to everything, or to `context` frames on each side plus the first `global_tokens`.
  bool local = false;
  int context = 0;
  int global_tokens = 0;

  int head_size() const { return d_model / num_heads; }
  int subsampling_stages() const;  // stride-2 convolutions
};

enum class DecoderKind { tdt, rnnt };

struct DecoderConfig {
  DecoderKind kind = DecoderKind::tdt;
  int blank = 0;  // also the number of pieces
  int prediction_layers = 0;
  int max_symbols = 10;        // tokens on one frame, greedy
  std::vector<int> durations;  // tdt: frames, by index of the duration output
  // rnnt, beam search (ALSD)
  int beam_size = 4;
  bool score_norm = true;
  float max_target_ratio = 2.0f;  // tokens per frame
  // Additions to the published layout, absent from files that do not need them
  // (docs/decisions/fastconformer-layout-additions.md).
  std::optional<int> max_target_tokens;  // an absolute limit in place of the ratio
  bool greedy_by_default = false;        // rnnt: the checkpoint asks for greedy search
  bool ctc = false;                      // the file carries a CTC head

  int outputs() const { return blank + 1 + static_cast<int>(durations.size()); }
};

// SentencePiece pieces and what NeMo does to text.
struct TextConfig {
  std::vector<std::string> pieces;
  int unknown_id = 0;
  std::string unknown_surface;
  bool strip_leading_space = true;
  std::vector<std::string> punctuation;  // sorted characters; a space before them is removed
  std::vector<std::string> separators;   // characters that end a segment
  std::vector<std::string> breaks;       // kept for readers that split after tokens
};

struct Config {
  FrontendConfig frontend;
  EncoderConfig encoder;
  DecoderConfig decoder;
  TextConfig text;

  // The mel axis after the subsampling: n_mels halved by each stage, rounded up.
  int subsampled_mels() const;
  int64_t encoder_frames(int64_t mel_frames) const;
  // Samples that one encoder frame stands for.
  int64_t samples_per_frame() const {
    return static_cast<int64_t>(frontend.hop_length) * encoder.subsampling_factor;
  }
};

// Reads layouts 1 and 2. Error(model_file) naming the key, what was expected and what was found.
Config read_config(const GgufFile& file);
// Writes the family's keys in the published order (the general ones are the converter's).
void write_config(const Config& config, GgufWriter& writer);

inline constexpr uint32_t kLayout = 2;
inline constexpr const char* kArchitecture = "fastconformer";

}  // namespace speech::fastconformer
