// speech eval: a language model scored on fixtures, and held against another.
#include <algorithm>

#include "base/file.h"
#include "base/memory.h"
#include "language.h"

namespace speech::cli {
namespace {

using Json = nlohmann::ordered_json;

class Eval final : public Command {
 public:
  void add_flags(CLI::App& app) override {
    app.add_option("MODEL", model_, "A Hugging Face or MLX folder, or a GGUF file")
        ->required()
        ->type_name("MODEL");
    app.add_option(
           "--fixtures", fixtures_,
           "The folder of fixtures: NAME.txt, and schema.json and system_prompt.md if there "
           "are any")
        ->required()
        ->type_name("DIR");
    app.add_option("--quantize", quantize_,
                   "Score the dense folder quantized while loading, once for each of a list: none, "
                   "int2, int3, int4, int5, int6, int8")
        ->delimiter(',');
    app.add_option("--baseline", baseline_,
                   "What the gate compares with: a model as it is, or the .json of an earlier run "
                   "(default: "
                   "the first of the list, if there are several)")
        ->type_name("MODEL");
    app.add_option("--max-loss", max_loss_,
                   "Percentage points of fixtures that may be lost to the baseline")
        ->check(at_least(0))
        ->capture_default_str();
    app.add_option("--min-score-ratio", min_score_ratio_,
                   "The score must be this many times the baseline's; 0: not asked")
        ->check(at_least(0))
        ->capture_default_str();
    app.add_option("--format", format_, "text, or json: every number and answer")
        ->check(CLI::IsMember({"text", "json"}))
        ->capture_default_str();
    sampling_.add(app);
    completion_.add(app);
    device_.add(app);
    device_.add_group_and_lora(app);
  }

  int run() override {
    std::vector<LoadSettings> configurations = read_configurations();
    Json base;
    if (baseline_.ends_with(".json")) base = read_report(baseline_);
    LoadSettings plain = device_.settings();
    if (!baseline_.empty() && base.is_null()) {
      plain.lora.clear();
      base = evaluate(baseline_, plain);
    }
    Json runs = Json::array(), verdicts = Json::array();
    for (const LoadSettings& settings : configurations) {
      runs.push_back(evaluate(model_, settings));
      if (base.is_null() && configurations.size() > 1) {
        base = runs[0];
        verdicts.push_back(nullptr);  // the baseline itself
      } else {
        verdicts.push_back(base.is_null() ? Json() : compare(base, runs.back()));
      }
    }
    if (format_ == "json") {
      print_json(Json{{"runs", runs}, {"gate", verdicts}, {"baseline", base}}.dump());
    } else {
      print_table(runs, verdicts, baseline_.empty() ? Json() : base);
    }
    bool failed = std::any_of(verdicts.begin(), verdicts.end(), [](const Json& v) {
      return v.is_object() && !v["passed"].get<bool>();
    });
    return failed ? exit_regression : exit_done;
  }

 private:
  // One for each of --quantize; checked before any model is loaded.
  std::vector<LoadSettings> read_configurations() const {
    std::vector<LoadSettings> list;
    for (const std::string& type : quantize_) {
      list.push_back(device_.settings());
      if (type != "none") list.back().quantize_bits = quantize_bits(type);
    }
    if (list.empty()) list.push_back(device_.settings());
    return list;
  }

  // A report, or the first run of an output of --format json.
  static Json read_report(const std::string& path) {
    Json json = Json::parse(read_text_file(path), nullptr, false);
    if (json.is_object() && json.contains("runs") && json["runs"].is_array() &&
        !json["runs"].empty()) {
      json = Json(json["runs"][0]);
    }
    if (!json.is_object()) {
      throw Failure(SPEECH_INVALID_ARGUMENT, "baseline",
                    path + " is not the output of speech eval --format json");
    }
    return json;
  }

  Json evaluate(const std::string& argument, const LoadSettings& settings) const {
    trim_memory();  // of the model before: it would count as this one's
    ModelHandle model = load_model(argument, settings);
    CompletionsHandle completions =
        completion_.make(model.get(), {.name = {}, .sequences = 1, .queue = 1});
    Json request = Json::object();
    sampling_.apply(request);
    speech_text* raw = nullptr;
    {
      Progress progress("eval");
      check(speech_evaluate(completions.get(), fixtures_.c_str(), request.dump().c_str(),
                            Progress::callback, &progress, &raw));
    }
    TextHandle owned(raw);
    Json report = Json::parse(speech_text_get(raw));
    for (const Json& f : report["fixtures"]) {
      for (const Json& failure : f["failures"]) {
        note("{} {}: {}", report["weights"].get<std::string>(), f["name"].get<std::string>(),
             failure.get<std::string>());
      }
    }
    return report;
  }

  Json compare(const Json& base, const Json& report) const {
    speech_text* raw = nullptr;
    check(speech_compare_evaluations(base.dump().c_str(), report.dump().c_str(), max_loss_,
                                     min_score_ratio_, &raw));
    TextHandle owned(raw);
    Json verdict = Json::parse(speech_text_get(raw));
    for (const Json& reason : verdict["reasons"]) {
      note("{}: the gate fails: {}", report["weights"].get<std::string>(),
           reason.get<std::string>());
    }
    for (const Json& name : verdict["lost"]) note("lost: {}", name.get<std::string>());
    return verdict;
  }

  static void print_table(const Json& runs, const Json& verdicts, const Json& base) {
    size_t width = 5;  // of "MODEL"
    auto name_width = [&](const Json& r) {
      if (!r.is_null()) width = std::max(width, r["model"].get_ref<const std::string&>().size());
    };
    name_width(base);
    for (const Json& r : runs) name_width(r);
    print(fmt::format("{:<{}}  {:<9} {:>8} {:>9} {:>9} {:>9} {:>8} {:>9}  {}\n", "MODEL", width,
                      "WEIGHTS", "FIXTURES", "DISK MB", "RSS MB", "TTFW MS", "TOK/S", "SCORE",
                      "GATE"));
    auto row = [&](const Json& r, const char* gate) {
      auto number = [&](const char* key, double divisor, int digits) {
        return r[key].is_number() ? fmt::format("{:.{}f}", r[key].get<double>() / divisor, digits)
                                  : std::string("-");
      };
      print(fmt::format("{:<{}}  {:<9} {:>8} {:>9} {:>9} {:>9} {:>8} {:>9}  {}\n",
                        r["model"].get<std::string>(), width, r["weights"].get<std::string>(),
                        fmt::format("{}/{}", r["passed"].get<int>(), r["scored"].get<int>()),
                        number("disk_bytes", 1e6, 1), number("resident_bytes", 1e6, 1),
                        number("first_word_ms", 1, 1), number("tokens_per_second", 1, 1),
                        number("score", 1, 3), gate));
    };
    if (!base.is_null()) row(base, "baseline");
    for (size_t i = 0; i < runs.size(); ++i) {
      const Json& v = verdicts[i];
      bool first_of_several = base.is_null() && runs.size() > 1 && i == 0;
      row(runs[i], v.is_object() ? (v["passed"].get<bool>() ? "pass" : "fail")
                                 : (first_of_several ? "baseline" : "-"));
    }
  }

  std::string model_, fixtures_, baseline_, format_ = "text";
  std::vector<std::string> quantize_;
  double max_loss_ = 2, min_score_ratio_ = 0;
  SamplingFlags sampling_;
  CompletionFlags completion_;
  DeviceFlags device_;
};

}  // namespace

std::unique_ptr<Command> make_eval() {
  return std::make_unique<Eval>();
}

}  // namespace speech::cli
