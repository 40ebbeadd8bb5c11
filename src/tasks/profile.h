// Where the time and the memory of a whole model go: the figures of `speech bench`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compute/limits.h"
#include "models/model.h"

namespace speech {

struct ProfileSettings {
  // Recognition and detection: this audio, or `seconds` of a made-up voice where it is empty.
  std::vector<float> audio;
  int rate = 0;  // Hz
  double seconds = 30;
  // Language models: a prompt in one pass, then tokens one by one, and the same of several
  // sequences in one batch (1: left out). Ids are random: the speed does not depend on them.
  int prompt_tokens = 512, tokens = 64, sequences = 4;
  int runs = 3;  // of which the fastest counts; another one goes before them
};

struct Profile {
  // A part of the fastest run. Shares of all parts add up to 1.
  struct Part {
    std::string name;
    int64_t calls = 0;
    double seconds = 0, share = 0;
    double flops = 0;  // 2 per multiply-add, per second; 0: not counted
    double bytes = 0;  // of weights read, per second; 0: none
  };
  struct Work {
    std::string name;  // "transcription", "detection", "prompt", "decode", "batch"
    std::string unit;  // of the amount: "seconds" of audio, "tokens"
    double amount = 0;
    int sequences = 1;
    std::vector<double> runs;        // seconds of each
    double seconds = 0, median = 0;  // of the runs: least and middle
    std::vector<Part> operations;    // slowest first; last "other": what is no operation
    std::vector<Part> stages;        // in order; empty where the model names none
    double products_alone = 0;       // seconds of the same products with nothing between them
    double outside_products = 0;     // share of the time outside products and attention
    double weight_bytes = 0;         // read by the products, per second
    uint64_t peak_memory = 0;        // bytes resident at most, from the start to this work's end
    uint64_t cache_bytes = 0;        // language models: keys and values held at the end
  };
  ModelInfo info;
  std::string device, processor, instructions;
  int threads = 0;
  double load_seconds = 0;
  uint64_t peak_memory = 0;  // bytes resident at most, without measuring the limits
  MachineLimits limits;
  std::vector<Work> works;
};

// Loads the model at `path` and measures it. Error(out_of_range | unsupported) for settings that
// the model cannot run, and as load_model().
Profile profile_model(const std::string& path, const LoadParams& params,
                      const ProfileSettings& settings);

// {"model", "works": [{"name", "operations": [...]}]}; docs/cli.md names the fields.
std::string profile_json(const Profile& profile);

}  // namespace speech
