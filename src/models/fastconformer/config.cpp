#include "models/fastconformer/config.h"

#include <bit>
#include <cmath>

#include "base/error.h"
#include "formats/gguf.h"
#include "models/general_info.h"

namespace speech::fastconformer {
namespace {

std::string full(const char* key) {
  return std::string("fastconformer.") + key;
}

// A count or size: from `low` up, and small enough that no product of two sizes overflows.
int read_size(const GgufFile& file, const char* key, int low = 1, int high = 1 << 20) {
  const uint32_t value = file.get_u32(full(key));
  if (value < static_cast<uint32_t>(low) || value > static_cast<uint32_t>(high)) {
    fail(Status::model_file, "{}: {} is {}, expected {} to {}", file.path(), full(key), value, low,
         high);
  }
  return static_cast<int>(value);
}

float read_number(const GgufFile& file, const char* key, float low, bool exclusive) {
  const float value = file.get_f32(full(key));
  if (!std::isfinite(value) || value < low || (exclusive && value == low)) {
    fail(Status::model_file, "{}: {} is {}, expected a finite number {} {}", file.path(), full(key),
         value, exclusive ? "above" : "of at least", low);
  }
  return value;
}

[[noreturn]] void refuse(const GgufFile& file, const char* key, const std::string& found,
                         const char* expected) {
  fail(Status::model_file, "{}: {} is {}, expected {}", file.path(), full(key), found, expected);
}

FrontendConfig read_frontend(const GgufFile& file) {
  FrontendConfig c;
  c.sample_rate = static_cast<int>(file.get_u32("speech.sample_rate"));
  if (c.sample_rate < 1000 || c.sample_rate > 192000) {
    fail(Status::model_file, "{}: speech.sample_rate is {}, expected 1000 to 192000", file.path(),
         c.sample_rate);
  }
  c.n_fft = read_size(file, "frontend.n_fft", 2, 1 << 16);
  c.hop_length = read_size(file, "frontend.hop_length", 1, 1 << 16);
  c.n_mels = read_size(file, "frontend.n_mels", 1, 4096);
  c.preemphasis = read_number(file, "frontend.preemphasis", 0, false);
  c.log_guard = read_number(file, "frontend.log_guard", 0, true);
  c.std_guard = read_number(file, "frontend.std_guard", 0, true);
  return c;
}

EncoderConfig read_encoder(const GgufFile& file) {
  EncoderConfig c;
  c.d_model = read_size(file, "encoder.d_model");
  c.num_layers = read_size(file, "encoder.num_layers", 1, 1 << 12);
  c.num_heads = read_size(file, "encoder.num_heads");
  if (c.d_model % 2 != 0 || c.d_model % c.num_heads != 0) {
    refuse(file, "encoder.d_model", std::to_string(c.d_model),
           "an even multiple of encoder.num_heads");
  }
  c.conv_kernel = read_size(file, "encoder.conv_kernel", 1, 1 << 10);
  if (c.conv_kernel % 2 == 0) {
    refuse(file, "encoder.conv_kernel", std::to_string(c.conv_kernel), "an odd number");
  }
  c.subsampling_factor = read_size(file, "encoder.subsampling_factor", 2, 64);
  if (!std::has_single_bit(static_cast<unsigned>(c.subsampling_factor))) {
    refuse(file, "encoder.subsampling_factor", std::to_string(c.subsampling_factor),
           "a power of two");
  }
  c.norm_eps = read_number(file, "encoder.norm_eps", 0, true);
  c.pos_base = read_number(file, "encoder.pos_base", 1, true);
  c.xscale = read_number(file, "encoder.xscale", 0, true);
  c.ff_factor = read_number(file, "encoder.ff_factor", 0, true);
  c.use_bias = file.get_bool(full("encoder.use_bias"));
  const std::string attention = file.get_string(full("encoder.attention"));
  if (attention == "rel_pos_local_attn") {
    c.local = true;
    c.context = read_size(file, "encoder.attention_context");
    c.global_tokens = read_size(file, "encoder.global_tokens", 0, 1);
  } else if (attention != "rel_pos") {
    refuse(file, "encoder.attention", '"' + attention + '"', "rel_pos or rel_pos_local_attn");
  }
  return c;
}

DecoderConfig read_decoder(const GgufFile& file, uint32_t layout) {
  DecoderConfig c;
  const std::string kind = file.get_string(full("decoder.kind"));
  c.blank = read_size(file, "decoder.blank_id");
  c.prediction_layers = read_size(file, "decoder.prediction_layers", 1, 64);
  if (kind == "tdt") {
    c.kind = DecoderKind::tdt;
    for (int32_t d : file.get_i32s(full("decoder.tdt.durations"))) {
      if (d < 0 || d > 1 << 20) {
        refuse(file, "decoder.tdt.durations", std::to_string(d), "no negative or huge value");
      }
      c.durations.push_back(d);
    }
    if (c.durations.empty() || c.durations.size() > 4096) {
      refuse(file, "decoder.tdt.durations", std::to_string(c.durations.size()) + " values",
             "1 to 4096 values");
    }
    c.max_symbols = read_size(file, "decoder.tdt.max_symbols");
  } else if (kind == "rnnt") {
    c.kind = DecoderKind::rnnt;
    c.beam_size = read_size(file, "decoder.rnnt.beam_size", 2, 1024);
    c.score_norm = file.get_bool(full("decoder.rnnt.score_norm"));
    c.max_target_ratio = read_number(file, "decoder.rnnt.max_target_ratio", 0, false);
    if (layout >= 2) {
      c.max_symbols = read_size(file, "decoder.rnnt.max_symbols");
    } else if (const std::string name = file.get_string("general.name");
               name == "reazonspeech-nemo-v2") {
      c.max_symbols = 10;
    } else {
      fail(Status::model_file,
           "{}: layout 1 does not hold fastconformer.decoder.rnnt.max_symbols, and it is known for "
           "reazonspeech-nemo-v2 only, not for \"{}\"; convert the checkpoint again",
           file.path(), name);
    }
    if (file.has(full("decoder.rnnt.max_target_tokens"))) {
      c.max_target_tokens = read_size(file, "decoder.rnnt.max_target_tokens", 0, 1 << 30);
    }
    if (file.has(full("decoder.rnnt.strategy"))) {
      const std::string strategy = file.get_string(full("decoder.rnnt.strategy"));
      if (strategy != "greedy" && strategy != "beam") {
        refuse(file, "decoder.rnnt.strategy", '"' + strategy + '"', "greedy or beam");
      }
      c.greedy_by_default = strategy == "greedy";
    }
  } else {
    refuse(file, "decoder.kind", '"' + kind + '"', "tdt or rnnt");
  }
  if (file.has(full("decoder.ctc"))) c.ctc = file.get_bool(full("decoder.ctc"));
  return c;
}

TextConfig read_text(const GgufFile& file, int blank) {
  TextConfig c;
  c.separators = file.get_strings(full("segment.separators"));
  c.breaks = file.get_strings(full("segment.breaks"));
  c.pieces = file.get_strings(full("tokenizer.tokens"));
  if (c.pieces.size() != static_cast<size_t>(blank)) {
    refuse(file, "tokenizer.tokens", std::to_string(c.pieces.size()) + " pieces",
           "as many as fastconformer.decoder.blank_id");
  }
  c.unknown_id = read_size(file, "tokenizer.unknown_id", 0, blank - 1);
  c.unknown_surface = file.get_string(full("tokenizer.unknown_surface"));
  c.strip_leading_space = file.get_bool(full("tokenizer.strip_leading_space"));
  c.punctuation = file.get_strings(full("tokenizer.punctuation"));
  return c;
}

}  // namespace

int EncoderConfig::subsampling_stages() const {
  return std::countr_zero(static_cast<unsigned>(subsampling_factor));
}

int Config::subsampled_mels() const {
  int n = frontend.n_mels;
  for (int i = 0; i < encoder.subsampling_stages(); ++i) n = (n + 1) / 2;
  return n;
}

int64_t Config::encoder_frames(int64_t mel_frames) const {
  for (int i = 0; i < encoder.subsampling_stages(); ++i) mel_frames = (mel_frames + 1) / 2;
  return mel_frames;
}

Config read_config(const GgufFile& file) {
  const uint32_t layout = check_layout(file, kLayout);
  Config c;
  c.frontend = read_frontend(file);
  c.encoder = read_encoder(file);
  c.decoder = read_decoder(file, layout);
  c.text = read_text(file, c.decoder.blank);
  return c;
}

void write_config(const Config& c, GgufWriter& w) {
  const auto u32 = [&](const char* key, int64_t value) {
    w.add_u32(full(key), static_cast<uint32_t>(value));
  };
  u32("frontend.n_fft", c.frontend.n_fft);
  u32("frontend.hop_length", c.frontend.hop_length);
  u32("frontend.n_mels", c.frontend.n_mels);
  w.add_f32(full("frontend.preemphasis"), c.frontend.preemphasis);
  w.add_f32(full("frontend.log_guard"), c.frontend.log_guard);
  w.add_f32(full("frontend.std_guard"), c.frontend.std_guard);

  u32("encoder.d_model", c.encoder.d_model);
  u32("encoder.num_layers", c.encoder.num_layers);
  u32("encoder.num_heads", c.encoder.num_heads);
  u32("encoder.conv_kernel", c.encoder.conv_kernel);
  u32("encoder.subsampling_factor", c.encoder.subsampling_factor);
  w.add_f32(full("encoder.norm_eps"), c.encoder.norm_eps);
  w.add_f32(full("encoder.pos_base"), c.encoder.pos_base);
  w.add_f32(full("encoder.xscale"), c.encoder.xscale);
  w.add_f32(full("encoder.ff_factor"), c.encoder.ff_factor);
  w.add_bool(full("encoder.use_bias"), c.encoder.use_bias);
  w.add_string(full("encoder.attention"), c.encoder.local ? "rel_pos_local_attn" : "rel_pos");
  if (c.encoder.local) {
    u32("encoder.attention_context", c.encoder.context);
    u32("encoder.global_tokens", c.encoder.global_tokens);
  }

  const DecoderConfig& d = c.decoder;
  w.add_string(full("decoder.kind"), d.kind == DecoderKind::tdt ? "tdt" : "rnnt");
  u32("decoder.blank_id", d.blank);
  u32("decoder.prediction_layers", d.prediction_layers);
  if (d.kind == DecoderKind::tdt) {
    w.add_i32s(full("decoder.tdt.durations"), d.durations);
    u32("decoder.tdt.max_symbols", d.max_symbols);
  } else {
    u32("decoder.rnnt.beam_size", d.beam_size);
    w.add_bool(full("decoder.rnnt.score_norm"), d.score_norm);
    w.add_f32(full("decoder.rnnt.max_target_ratio"), d.max_target_ratio);
    u32("decoder.rnnt.max_symbols", d.max_symbols);
    if (d.max_target_tokens) u32("decoder.rnnt.max_target_tokens", *d.max_target_tokens);
    if (d.greedy_by_default) w.add_string(full("decoder.rnnt.strategy"), "greedy");
  }
  if (d.ctc) w.add_bool(full("decoder.ctc"), true);

  w.add_strings(full("segment.separators"), c.text.separators);
  w.add_strings(full("segment.breaks"), c.text.breaks);
  w.add_strings(full("tokenizer.tokens"), c.text.pieces);
  u32("tokenizer.unknown_id", c.text.unknown_id);
  w.add_string(full("tokenizer.unknown_surface"), c.text.unknown_surface);
  w.add_bool(full("tokenizer.strip_leading_space"), c.text.strip_leading_space);
  w.add_strings(full("tokenizer.punctuation"), c.text.punctuation);
}

}  // namespace speech::fastconformer
