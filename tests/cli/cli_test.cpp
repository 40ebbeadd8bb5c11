// The program as a person or a script runs it.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "audio/read.h"
#include "audio/write.h"
#include "base/file.h"
#include "formats/safetensors.h"
#include "tasks/script.h"
#include "test_data.h"

namespace speech {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Result {
  int code = -1;
  std::string out, err;
};

class Cli : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              ("speech_cli_" + std::to_string(::getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // Runs a shell command line in which "speech" is the program.
  Result shell(const std::string& command) const {
    std::string line = "speech() { \"" SPEECH_PROGRAM "\" \"$@\"; }; " + command + " >" +
                       path("out") + " 2>" + path("err");
    Result run;
    int status = std::system(line.c_str());
    run.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    run.out = read_text_file(path("out"));
    run.err = read_text_file(path("err"));
    return run;
  }
  Result speech(const std::string& arguments) const { return shell("speech " + arguments); }

  static std::string jfk() { return data_path("audio/jfk.wav"); }
  static std::string data_path(const std::string& name) { return testing::data_path(name); }

  fs::path folder_;
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(Cli, OutputsNeverReplaceInputsOrDevices) {
  std::string recording = path("meeting-1.wav"), first = path("meeting.wav");
  fs::copy_file(jfk(), recording);
  fs::copy_file(jfk(), first);
  Result run = speech("trace silero-vad " + recording + " --out " + recording);
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(contains(run.err, "invalid_argument (out): ")) << run.err;
  run = speech("vad silero-vad " + first + " " + recording + " --split " + folder_.string());
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(contains(run.err, "invalid_argument (split): ")) << run.err;
  EXPECT_EQ(fs::file_size(recording), fs::file_size(jfk()));
  ASSERT_EQ(std::system(("mkfifo " + path("fifo")).c_str()), 0);
  run = speech("trace silero-vad " + recording + " --out " + path("fifo"));
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(contains(run.err, "it is not a regular file")) << run.err;
  EXPECT_TRUE(fs::is_fifo(path("fifo")));
  // A link stays one: its target is written.
  fs::create_symlink("target", path("link"));
  EXPECT_EQ(speech("trace silero-vad " + recording + " --out " + path("link")).code, 0);
  EXPECT_TRUE(fs::is_symlink(path("link")) && fs::file_size(path("target")) > 0);
}

TEST_F(Cli, FoldersThatCannotBeMadeAreSaidAtOnce) {
  Result run = shell("touch " + path("file") + "; speech vad silero-vad " + jfk() + " --split " +
                     path("file"));
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(contains(run.err, "io (split): cannot make the folder ")) << run.err;
  EXPECT_EQ(run.out, "");
}

TEST_F(Cli, VersionAndHelp) {
  Result run = speech("--version");
  EXPECT_EQ(run.code, 0);
  EXPECT_TRUE(run.out.starts_with("speech ") && contains(run.out, ", C API 1.0\n")) << run.out;
  run = speech("vad --help");
  EXPECT_EQ(run.code, 0);
  for (const char* flag : {"--format", "--split", "--threads", "--min-speech-duration-ms"}) {
    EXPECT_TRUE(contains(run.out, flag)) << flag;
  }
  EXPECT_TRUE(contains(run.out, "Usage: speech vad [OPTIONS] MODEL AUDIO...\n")) << run.out;
  run = speech("bench --help");
  EXPECT_TRUE(contains(run.out, "Usage: speech bench [OPTIONS] MODEL [AUDIO.wav | MODEL...]\n"))
      << run.out;
}

TEST_F(Cli, ArgumentsThatBeginWithADashFollowTwo) {
  fs::copy_file(jfk(), path("-x.wav"));
  fs::copy_file(jfk(), path("vad"));
  Result run =
      shell("cd " + folder_.string() + "; speech vad --threads 1 silero-vad -- -x.wav vad");
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(run.out.starts_with("-x.wav\t0.322\t2.270\n")) << run.out;
  EXPECT_TRUE(contains(run.out, "\nvad\t0.322\t2.270\n")) << run.out;
  run = shell("cd " + folder_.string() + "; speech vad -- silero-vad -x.wav");
  EXPECT_TRUE(run.out.starts_with("-x.wav\t0.322\t2.270\n")) << run.err;
}

TEST_F(Cli, UsageErrorsExitWith2AndPointToTheHelp) {
  for (const char* arguments : {"",
                                "listen",
                                "vad",
                                "vad silero-vad",
                                "vad silero-vad a.wav --format xml",
                                "vad silero-vad a.wav --threads 2x",
                                "vad silero-vad a.wav --threshold",
                                "vad silero-vad a.wav --threshold 0.5x",
                                "vad silero-vad a.wav --speech-pad-ms 1.5",
                                "vad silero-vad a.wav --no-timestamps",
                                "vad a.wav b.wav",
                                "vad silero-vad:q8_0 a.wav",
                                "vad silero-vad a/x.wav b/x.wav --split d",
                                "trace silero-vad a.wav",
                                "asr m.gguf -",
                                "serve m --kv-cache q8_0",
                                "asr m.gguf --live",
                                "bench",
                                "asr m.gguf a.wav b.wav --format srt",
                                "asr m.gguf a.wav --rate 8000",
                                "bench silero-vad a.wav --seconds 3",
                                "bench silero-vad a.wav b.wav",
                                "bench silero-vad a.wav --format md",
                                "bench silero-vad a.wav --decoding ctc",
                                "bench m.gguf --quality a.jsonl --tokens 3",
                                "bench m.gguf --quality a.jsonl --lora a",
                                "trace silero-vad a.wav --out f --chunks -1",
                                "trace m.gguf --out f --ids 1 --prompt a",
                                "trace m.gguf --out f --ids 1 --temperature 1",
                                "vad silero-vad a.wav --threads 0",
                                "quantize a.gguf b.gguf"}) {
    Result run = speech(arguments);
    EXPECT_EQ(run.code, 2) << arguments << "\n" << run.err;
    EXPECT_EQ(run.out, "") << arguments;
    EXPECT_TRUE(contains(run.err, "--help")) << arguments << "\n" << run.err;
  }
  EXPECT_TRUE(contains(speech("vad silero-vad a.wav --threads 0").err,
                       "--threads: expected a number of at least 1, not 0"));
  for (const char* command : {"bench", "info", "generate", "quantize"}) {
    EXPECT_TRUE(contains(speech(command).err, "speech: MODEL is missing: ")) << command;
  }
  EXPECT_TRUE(contains(speech("trace silero-vad a.wav").err, "speech: --out is missing\n"));
  EXPECT_TRUE(
      contains(speech("lora bake a b").err, "speech: OUT is missing\nSee speech lora bake"));
  EXPECT_TRUE(contains(speech("vad a.wav").err, "silero-vad"));
  EXPECT_TRUE(contains(speech("asr a.wav").err, "parakeet-tdt-0.6b-v3"));
  EXPECT_TRUE(contains(speech("vad silero a.wav").err, "silero-vad:f32"));
}

TEST_F(Cli, FailuresExitWith1AndOneErrorLine) {
  auto last_line = [](std::string text) {
    if (!text.empty()) text.pop_back();
    size_t newline = text.rfind('\n');
    return newline == std::string::npos ? text : text.substr(newline + 1);
  };
  Result run = speech("vad silero-vad /nonexistent.wav");
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(last_line(run.err).starts_with("speech: io (audio): ")) << run.err;
  EXPECT_TRUE(contains(run.err, "/nonexistent.wav"));
  run = speech("vad /nonexistent.gguf " + jfk());
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(last_line(run.err).starts_with("speech: io (model_path): ")) << run.err;
  run = speech("vad silero-vad " + jfk() + " --threshold 1.5");
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(last_line(run.err).starts_with("speech: out_of_range (threshold): ")) << run.err;
  run = speech("vad silero-vad " + jfk() + " --temperature 1");
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(last_line(run.err).starts_with("speech: unsupported (temperature): ")) << run.err;
  run = speech("vad silero-vad " + jfk() + " --device gpu");
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(last_line(run.err).starts_with("speech: device (device): ")) << run.err;
  run = speech("asr silero-vad " + jfk());
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(contains(last_line(run.err), "speech: unsupported (model_path): ")) << run.err;
  std::ofstream(path("cut.gguf")) << "GGUF\3";
  run = speech("vad " + path("cut.gguf") + " " + jfk());
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(last_line(run.err).starts_with("speech: model_file (model_path): ")) << run.err;
  run = speech("info " + path("cut.gguf"));
  EXPECT_TRUE(last_line(run.err).starts_with("speech: model_file (model_path): ")) << run.err;
}

// Every recording has its regions or its error, and the last line counts the errors.
TEST_F(Cli, OneBadRecordingDoesNotCostTheOthers) {
  std::ofstream(path("text.wav")) << "this is no audio";
  Result run =
      speech("vad silero-vad /nonexistent.wav " + jfk() + " " + path("text.wav") + " " + jfk());
  EXPECT_EQ(run.code, 1);
  EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 8) << run.out;
  for (const std::string& line :
       {std::string("speech: io (audio): cannot open /nonexistent.wav"),
        "speech: unsupported (audio): " + path("text.wav"),
        std::string("speech: io (audio): 2 of 4 recordings failed, the first: ")}) {
    EXPECT_TRUE(contains(run.err, line)) << line << "\n" << run.err;
  }
}

TEST_F(Cli, TokensAndTextsAreReadWhole) {
  std::string model = data_path("qwen3/dense-tied/checkpoint");
  std::ofstream(path("nul")) << "a" << '\0' << "b";
  for (const std::string& arguments :
       {"generate " + model + " --ids ''", "generate " + model + " --ids 5,,6 -p a",
        "generate " + model + " <" + path("nul"), "tokenize " + model + " --decode ''",
        "tokenize " + model + " <" + path("nul"), "generate " + model + " -p a --temperature nan",
        "generate " + model + " -p a --top-p inf",
        "generate " + model + " -p a --grammar " + path("nul")}) {
    Result run = speech(arguments);
    EXPECT_EQ(run.code, 2) << arguments << "\n" << run.err;
    EXPECT_EQ(run.out, "") << arguments;
  }
  for (const char* id : {"-1", "608", "99999999"}) {
    Result run = speech("tokenize " + model + " --decode 5," + id);
    EXPECT_EQ(run.code, 1) << run.err;
    EXPECT_TRUE(contains(run.err, "speech: out_of_range (ids): token id " + std::string(id)))
        << run.err;
  }
}

TEST_F(Cli, ClosedStandardDescriptorsMixNothing) {
  std::string model = data_path("qwen3/dense-tied/checkpoint");
  std::string generate =
      "speech generate " + model + " --ids 5 --max-tokens 2 --temperature 0 --format json";
  Result run = shell(generate);
  ASSERT_EQ(run.code, 0) << run.err;
  // In a shell of its own: what is closed here would be opened again behind it.
  Result closed = shell("( " + generate + " 2>&- <&- )");
  EXPECT_EQ(closed.code, 0);
  EXPECT_EQ(closed.out, run.out);
  closed = shell("( " + generate + " >&- )");
  EXPECT_EQ(closed.code, 1);
  EXPECT_TRUE(contains(closed.err, "speech: io (stdout): ")) << closed.err;
}

TEST_F(Cli, VadText) {
  Result run = speech("vad silero-vad " + jfk());
  EXPECT_EQ(run.code, 0) << run.err;
  std::string f = jfk();
  EXPECT_EQ(run.out, f + "\t0.322\t2.270\n" + f + "\t3.266\t4.446\n" + f + "\t5.378\t7.678\n" + f +
                         "\t8.162\t10.622\n");
  // Options at values that mean nothing are taken by every model; flags take = too.
  EXPECT_EQ(speech("vad silero-vad --language=auto --timestamps=false --threads=2 " + f).out,
            run.out);
  EXPECT_EQ(speech("vad silero-vad:f32 " + f).out, run.out);
  EXPECT_TRUE(contains(run.err, "real-time factor"));
}

TEST_F(Cli, VadJsonAndSplitAgree) {
  Result run = speech("vad silero-vad " + jfk() + " --format json --split " + path("parts"));
  ASSERT_EQ(run.code, 0) << run.err;
  json regions = json::parse(run.out)["regions"];
  ASSERT_EQ(regions.size(), 4u);
  for (size_t i = 0; i < regions.size(); ++i) {
    auto part = path("parts/jfk-" + std::to_string(i + 1) + ".wav");
    double samples = std::round(regions[i]["end"].get<double>() * 16000) -
                     std::round(regions[i]["start"].get<double>() * 16000);
    EXPECT_EQ(fs::file_size(part), 44 + 2 * static_cast<uintmax_t>(samples)) << part;
  }
}

TEST_F(Cli, VadOfSilenceAndOfNothingIsEmpty) {
  write_wav(path("silence.wav"), std::vector<float>(16000), 16000);
  write_wav(path("empty.wav"), {}, 16000);
  for (const char* name : {"silence.wav", "empty.wav"}) {
    Result run = speech("vad silero-vad " + path(name));
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_EQ(run.out, "");
    run = speech("vad silero-vad --format json " + path(name));
    EXPECT_EQ(json::parse(run.out)["regions"].size(), 0u);
  }
}

TEST_F(Cli, ModelsAreFoundByNameInFoldersOfTheEnvironment) {
  Result run = speech("models --json");
  ASSERT_EQ(run.code, 0) << run.err;
  json models = json::parse(run.out)["models"];
  EXPECT_EQ(models.size(), 11u);
  const json& silero = models.back();
  EXPECT_EQ(silero["name"], "silero-vad");
  EXPECT_EQ(silero["files"][0]["fetched"], true);
  std::string here = silero["files"][0]["path"];
  std::string file = silero["files"][0]["file"];

  fs::create_directories(path("m/silero-vad"));
  fs::copy_file(here, path("m/silero-vad/" + file));
  run = shell("SPEECH_MODELS=/nonexistent:" + path("m") + " speech models --json");
  EXPECT_EQ(json::parse(run.out)["models"].back()["files"][0]["path"],
            path("m/silero-vad/" + file));
  // A file cut short is not the model.
  fs::resize_file(path("m/silero-vad/" + file), 1000);
  run = shell("SPEECH_MODELS=" + path("m") + " speech models --json");
  EXPECT_NE(json::parse(run.out)["models"].back()["files"][0]["path"],
            path("m/silero-vad/" + file));
  run = speech("vad qwen3-asr-0.6b " + jfk());
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(contains(run.err, "speech: io (model_path): ")) << run.err;
  EXPECT_TRUE(contains(run.err, "Qwen3-ASR-0.6B-Q8_0.gguf"));
}

TEST_F(Cli, AnInstalledProgramFindsTheModelsBesideIt) {
  // As `make install` lays them out; the folder beside the program comes before that of the source.
  const json models = json::parse(speech("models --json").out)["models"];
  const json& tiny = models[models.size() - 2];
  ASSERT_EQ(tiny["name"], "tiny-en");
  EXPECT_EQ(tiny["task"], "recognition");
  EXPECT_EQ(tiny["languages"], json{"en"});
  EXPECT_TRUE(tiny["repository"].is_null() && tiny["files"][0]["url"].is_null());
  ASSERT_EQ(tiny["files"][0]["fetched"], true);
  const std::string file = tiny["files"][0]["file"];
  fs::create_directories(path("bin"));
  fs::create_directories(path("share/speech/models/tiny-en"));
  fs::copy_file(SPEECH_PROGRAM, path("bin/speech"));
  fs::copy_file(tiny["files"][0]["path"].get<std::string>(),
                path("share/speech/models/tiny-en/" + file));
  Result run = shell(path("bin/speech") + " models --json");
  const json installed = json::parse(run.out)["models"];
  EXPECT_EQ(installed[installed.size() - 2]["files"][0]["path"],
            path("share/speech/models/tiny-en/" + file));
  run = shell(path("bin/speech") + " asr tiny-en --format json " + jfk());
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_NE(json::parse(run.out)["text"], "");
}

TEST_F(Cli, InfoAndDevices) {
  Result run = speech("info silero-vad --json");
  ASSERT_EQ(run.code, 0) << run.err;
  json info = json::parse(run.out);
  EXPECT_EQ(info["task"], "detection");
  EXPECT_EQ(info["options"][0]["name"], "threshold");
  EXPECT_EQ(info["format"], "gguf");
  EXPECT_EQ(info["tensors"].size(), 14u);
  EXPECT_FALSE(info.contains("device"));
  run = speech("info silero-vad");
  EXPECT_TRUE(contains(run.out, "lstm.hh.weight") && contains(run.out, "[512, 128]")) << run.out;
  run = speech("devices --json");
  EXPECT_EQ(json::parse(run.out)["devices"][0]["kind"], "cpu");
}

TEST_F(Cli, BenchMeasuresAModel) {
  Result run = speech("bench silero-vad " + jfk() + " --runs 2 --threads 1 --format json");
  ASSERT_EQ(run.code, 0) << run.err;
  json profile = json::parse(run.out);
  EXPECT_EQ(profile["model"], "silero-vad");
  EXPECT_EQ(profile["threads"], 1);
  for (const char* field : {"load_seconds", "peak_memory_bytes", "peak_flops", "read_bandwidth"}) {
    EXPECT_GT(profile[field].get<double>(), 0) << field;
  }
  ASSERT_EQ(profile["works"].size(), 1u);
  const json& work = profile["works"][0];
  EXPECT_EQ(work["name"], "detection");
  EXPECT_NEAR(work["amount"].get<double>(), 11.0, 1e-9);
  EXPECT_EQ(work["runs"].size(), 2u);
  double shares = 0;
  for (const json& operation : work["operations"]) shares += operation["share"].get<double>();
  EXPECT_NEAR(shares, 1, 1e-9);

  run = speech("bench " + data_path("qwen3/dense-tied/checkpoint") +
               " --prompt-tokens 20 --tokens 2 --sequences 1 --runs 1");
  ASSERT_EQ(run.code, 0) << run.err;
  for (const char* part : {"prompt: 20 tokens in ", "decode: 2 tokens in ", "limits: ", "matmul"}) {
    EXPECT_TRUE(contains(run.out, part)) << part << "\n" << run.out;
  }
  EXPECT_FALSE(contains(run.out, "batch: "));

  EXPECT_EQ(speech("bench silero-vad --seconds 0").code, 1);
  EXPECT_EQ(speech("bench silero-vad --prompt-tokens 5").code, 2);
  EXPECT_EQ(speech("bench " + data_path("qwen3/dense-tied/checkpoint") + " " + jfk()).code, 2);
}

TEST_F(Cli, TraceWritesTheStagesOrNothing) {
  std::string out = path("stages.safetensors");
  Result run = speech("trace silero-vad " + jfk() + " --out " + out + " --chunks 0,3");
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.out, "");
  auto file = open_tensor_file(out);
  EXPECT_EQ(file->require("00_input").shape, (std::vector<int64_t>{2, 576}));
  EXPECT_EQ(to_i64(file->require("chunk_index")), (std::vector<int64_t>{0, 3}));
  run = speech("trace silero-vad " + jfk() + " " + jfk() + " --out " + out);
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_NE(open_tensor_file(out)->find("item1.00_input"), nullptr);
  run = speech("trace silero-vad " + jfk() + " --out " + path("no/such/folder.safetensors"));
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(contains(run.err, "speech: io (out_path): ")) << run.err;
  run = speech("trace silero-vad " + jfk() + " --out " + path("s") + " --chunks 0,999");
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(contains(run.err, "speech: out_of_range (chunks): ")) << run.err;
  EXPECT_FALSE(fs::exists(path("s")));
}

TEST_F(Cli, ConvertQuantizeAndTheirPlans) {
  std::string jit = data_path("silero_vad/checkpoint/silero_vad.jit");
  Result run = speech("convert " + jit + " " + path("vad.gguf") + " --dry-run");
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(contains(run.out, "1238624 bytes")) << run.out;
  EXPECT_FALSE(fs::exists(path("vad.gguf")));
  run = speech("convert " + jit + " " + path("vad.gguf"));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(fs::file_size(path("vad.gguf")), 1238624u);
  // What a checkpoint gives no choice of is refused.
  run = speech("convert " + jit + " " + path("no.gguf") + " --extra-heads");
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(contains(run.err, "speech: unsupported (extra_heads): ")) << run.err;
  std::string nemo = data_path("fastconformer/v3-small/model.nemo");
  run = speech("convert " + nemo + " " + path("no.gguf") + " --extra-heads");
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(contains(run.err, "speech: unsupported (extra_heads): ")) << run.err;
  run = speech("convert " + nemo + " " + path("no.gguf") + " --rate 8000");
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(contains(run.err, "speech: unsupported (rate): ")) << run.err;
  run = speech("quantize " + path("vad.gguf") + " " + path("q.gguf") + " --type q8_0");
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(contains(run.err, "speech: invalid_argument (model_path): ")) << run.err;
  run = speech("quantize " + path("vad.gguf") + " " + path("q.gguf") + " --type q3_k");
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(contains(run.err, "speech: out_of_range (type): ")) << run.err;
  run = speech("convert " + nemo + " " + path("f32.gguf"));
  EXPECT_EQ(run.code, 0) << run.err;
  const std::string quantize = "quantize " + path("f32.gguf") + " " + path("q.gguf") + " --type ";
  run = speech(quantize + "q4_k --calibrate " + data_path("fastconformer/inputs/main.wav") +
               " no.wav");
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(contains(run.err, "speech: io (calibrate): cannot open no.wav")) << run.err;
  run = speech(quantize + "f16 --calibrate " + data_path("fastconformer/inputs/main.wav"));
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(contains(run.err, "speech: invalid_argument (calibrate): F16 ")) << run.err;
  EXPECT_FALSE(fs::exists(path("q.gguf")));
}

// A recognition model of made-up weights: its words mean nothing, but the ways to ask for them do.
class CliAsr : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    std::string nemo = data_path("fastconformer/v3-small/model.nemo");
    model_ = path("m.gguf");
    Result run = speech("convert " + nemo + " " + model_);
    ASSERT_EQ(run.code, 0) << run.err;
  }
  std::string main_wav() const { return data_path("fastconformer/inputs/main.wav"); }

  std::string model_;
};

TEST_F(CliAsr, FormatsAgree) {
  Result text = speech("asr " + model_ + " " + main_wav());
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.out, "Who left the pi\n");
  Result run = speech("asr " + model_ + " --format json --timestamps " + main_wav());
  json result = json::parse(run.out);
  EXPECT_EQ(result["text"], "Who left the pi");
  EXPECT_EQ(result["stop"], "complete");
  EXPECT_EQ(result["words"].size(), 4u);
  EXPECT_EQ(result["words"][1]["text"], "left");
  EXPECT_EQ(speech("asr " + model_ + " --timestamps " + main_wav()).out,
            main_wav() + "\t0.000\t1.360\tWho left the pi\n");
  EXPECT_EQ(speech("asr " + model_ + " --format srt " + main_wav()).out,
            "1\n00:00:00,000 --> 00:00:01,360\nWho left the pi\n\n");
  EXPECT_EQ(speech("asr " + model_ + " --format tsv " + main_wav()).out,
            "start\tend\ttext\n0\t1360\tWho left the pi\n");
  run = speech("asr " + model_ + " --format words " + main_wav());
  std::string words = "start\tend\ttext\n";
  for (const json& word : result["words"]) {
    words += std::to_string(std::llround(1000 * word["start"].get<double>())) + "\t" +
             std::to_string(std::llround(1000 * word["end"].get<double>())) + "\t" +
             word["text"].get<std::string>() + "\n";
  }
  EXPECT_EQ(run.out, words);
  EXPECT_TRUE(json::parse(speech("asr " + model_ + " --format json " + main_wav()).out)
                  .contains("segments") == false);
}

TEST_F(CliAsr, SeveralFilesAloneInABatchAndIntoAFolder) {
  write_wav(path("a.wav"), std::vector<float>(16000, 0.1f), 16000);
  std::string files = jfk() + " " + main_wav() + " " + path("a.wav");
  Result one = speech("asr " + model_ + " --format json --timestamps " + files);
  Result batch = speech("asr " + model_ + " --format json --timestamps --batch 3 " + files);
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(one.out, batch.out);
  EXPECT_EQ(std::count(one.out.begin(), one.out.end(), '\n'), 3);
  Result run = speech("asr " + model_ + " --format vtt --out " + path("texts") + " " + files);
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.out, "");
  EXPECT_TRUE(read_text_file(path("texts/main.vtt")).starts_with("WEBVTT\n\n00:00:00.000 --> "));
}

TEST_F(CliAsr, RegionsAndStandardInputGiveTheSameTexts) {
  Result regions =
      speech("asr " + model_ + " --vad silero-vad --format json --timestamps " + jfk());
  ASSERT_EQ(regions.code, 0) << regions.err;
  json result = json::parse(regions.out);
  EXPECT_FALSE(result["text"].get<std::string>().empty());
  double last = 0;
  for (const auto& token : result["tokens"]) {
    EXPECT_GE(token["start"].get<double>(), last);
    last = token["start"];
  }
  EXPECT_LE(last, 11.0);

  // The same audio as PCM on standard input: an utterance per line. Joined, they are the text.
  std::vector<int16_t> pcm;
  for (float x : read_audio(jfk()).samples) pcm.push_back(static_cast<int16_t>(x * 32768));
  std::ofstream(path("pcm"), std::ios::binary)
      .write(reinterpret_cast<const char*>(pcm.data()),
             static_cast<std::streamsize>(pcm.size() * 2));
  Result live = shell("cat " + path("pcm") + " | speech asr " + model_ + " --vad silero-vad -");
  ASSERT_EQ(live.code, 0) << live.err;
  std::istringstream lines(live.out);
  std::string joined_lines;
  for (std::string line; std::getline(lines, line);) {
    joined_lines += (needs_space(joined_lines, line) ? " " : "") + line;
  }
  EXPECT_EQ(joined_lines, result["text"]);

  Result events =
      shell("cat " + path("pcm") + " | speech asr " + model_ + " --vad silero-vad --format json -");
  std::istringstream stream(events.out);
  std::string transcripts;
  int started = 0, stopped = 0;
  for (std::string line; std::getline(stream, line);) {
    json event = json::parse(line);
    std::string type = event["type"];
    started += type == "input_audio_buffer.speech_started";
    stopped += type == "input_audio_buffer.speech_stopped";
    if (type != "conversation.item.input_audio_transcription.completed") continue;
    EXPECT_EQ(event["stop"], "complete");
    std::string text = event["transcript"];
    transcripts += (needs_space(transcripts, text) ? " " : "") + text;
  }
  EXPECT_EQ(transcripts, result["text"]);
  EXPECT_GT(started, 0);
  EXPECT_EQ(started, stopped);

  Result odd = shell("printf abc | speech asr " + model_ + " --vad silero-vad -");
  EXPECT_EQ(odd.code, 1);
  EXPECT_TRUE(contains(odd.err, "speech: invalid_argument (audio): ")) << odd.err;
}

TEST_F(CliAsr, BenchScoresWhatModelsWrite) {
  // The words of the first are those of the official implementation (FormatsAgree), the second is
  // said to be something else.
  std::ofstream(path("m.jsonl"))
      << json{{"audio", main_wav()}, {"text", "Who left the pie?"}, {"groups", {{"part", "a"}}}}
      << "\n"
      << json{{"audio", main_wav()}, {"text", "Who left?"}, {"groups", {{"part", "b"}}}} << "\n";
  ASSERT_EQ(speech("quantize " + model_ + " " + path("q.gguf") + " --type f16").code, 0);
  const std::string command = "bench --threads 1 --quality " + path("m.jsonl") + " " + model_;
  Result run = speech(command + " --format json");
  ASSERT_EQ(run.code, 0) << run.err;
  const json alone = json::parse(run.out);
  ASSERT_EQ(alone["runs"].size(), 1u);
  EXPECT_EQ(alone["runs"][0]["texts"], (json{"Who left the pi", "Who left the pi"}));
  EXPECT_EQ(alone["runs"][0]["wer"]["errors"], 3);  // pi for pie; the, pi too many
  EXPECT_EQ(alone["runs"][0]["wer"]["length"], 6);
  EXPECT_EQ(alone["runs"][0]["type"], "f32");
  EXPECT_EQ(alone["runs"][0]["threads"], 1);
  EXPECT_GT(alone["runs"][0]["peak_memory_bytes"], fs::file_size(model_));

  run = speech(command + " " + path("q.gguf") + " --format json");
  ASSERT_EQ(run.code, 0) << run.err;
  const json both = json::parse(run.out);
  ASSERT_EQ(both["runs"].size(), 2u);
  EXPECT_EQ(both["runs"][0]["texts"], alone["runs"][0]["texts"]);
  EXPECT_EQ(both["runs"][0]["decoding"], "");
  EXPECT_EQ(both["runs"][1]["type"], "f16");
  // Each in a process of its own: behind a model that is far larger, the peak is its own.
  run = speech("bench --threads 1 --quality " + path("m.jsonl") + " tiny-en " + model_ +
               " --format json");
  ASSERT_EQ(run.code, 0) << run.err;
  const json sizes = json::parse(run.out);
  EXPECT_LT(sizes["runs"][1]["peak_memory_bytes"].get<double>(),
            0.8 * sizes["runs"][0]["peak_memory_bytes"].get<double>());
  run = speech(command + " --format md");
  EXPECT_TRUE(contains(run.out, "| part a | 1 | 4 | 25.00 (25.00 to 25.00) |")) << run.out;

  run = speech(command + " --decoding ctc");
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(contains(run.err, "speech: unsupported (decoding): ")) << run.err;
  run = speech("bench silero-vad --quality " + path("m.jsonl"));
  EXPECT_TRUE(contains(run.err, "speech: unsupported (quality): ")) << run.err;
  std::ofstream(path("m.jsonl"), std::ios::app) << R"({"audio": "no.wav", "text": "a"})";
  run = speech(command);
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(contains(run.err, "speech: io (quality): " + path("m.jsonl") + ":3: ")) << run.err;
}

TEST_F(CliAsr, OptionsGoToTheModelThatTakesThem) {
  Result run = speech("asr " + model_ + " --threshold 0.5 " + jfk());
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(contains(run.err, "speech: unsupported (threshold): ")) << run.err;
  // A threshold that nothing reaches: no speech, so no text; but options are checked all the same.
  run = speech("asr " + model_ + " --vad silero-vad --threshold 1 " + jfk());
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.out, "\n");
  run = speech("asr " + model_ + " --vad silero-vad --threshold 1 --language xx " + jfk());
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(contains(run.err, "(language)")) << run.err;
}

TEST_F(CliAsr, BadAudioIsAnErrorThatNamesTheFile) {
  write_wav(path("empty.wav"), {}, 16000);
  write_wav(path("short.wav"), std::vector<float>(100), 16000);
  std::ofstream(path("text.wav")) << "this is no audio";
  for (const char* name : {"empty.wav", "short.wav", "text.wav", "missing.wav"}) {
    Result run = speech("asr " + model_ + " " + main_wav() + " " + path(name));
    EXPECT_EQ(run.code, 1) << name;
    EXPECT_EQ(run.out, "Who left the pi\n") << name;  // of the file before
    EXPECT_TRUE(contains(run.err, "speech: ") && contains(run.err, path(name))) << run.err;
  }
}

TEST_F(CliAsr, OneBadRecordingDoesNotCostTheOthersOfABatch) {
  write_wav(path("short.wav"), std::vector<float>(100), 16000);
  const std::string files = path("short.wav") + " " + main_wav() + " " + path("missing.wav") + " " +
                            jfk() + " " + main_wav();
  Result one = speech("asr " + model_ + " " + files);
  EXPECT_EQ(one.code, 1);
  EXPECT_TRUE(one.out.starts_with("Who left the pi\n")) << one.out;
  EXPECT_TRUE(one.out.ends_with("\nWho left the pi\n")) << one.out;
  for (int batch : {2, 3, 64}) {
    Result run = speech("asr " + model_ + " --batch " + std::to_string(batch) + " " + files);
    EXPECT_EQ(run.code, 1);
    EXPECT_EQ(run.out, one.out) << batch;
    for (const std::string& line :
         {"speech: out_of_range (audio): " + path("short.wav") + ": ",
          "speech: io (audio): cannot open " + path("missing.wav"),
          std::string(" (audio): 2 of 5 recordings failed, the first: ")}) {
      EXPECT_TRUE(contains(run.err, line)) << line << "\n" << run.err;
    }
  }
}

TEST_F(CliAsr, WeightsThatAreNoNumbersAreTheModelsFault) {
  // The first weight of the joint's output.
  auto file = MappedFile::open(model_);
  const auto tensors = open_tensor_file(model_);
  const auto weight = tensors->require("joint.out.weight").bytes;
  std::string bytes(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
  const size_t at =
      bytes.find(std::string_view(reinterpret_cast<const char*>(weight.data()), weight.size()));
  ASSERT_NE(at, std::string::npos);
  const float nan = std::nanf("");
  std::memcpy(bytes.data() + at, &nan, sizeof nan);
  std::ofstream(path("nan.gguf"), std::ios::binary) << bytes;
  for (const char* decoding : {"", " --batch 2"}) {
    Result run = speech("asr " + path("nan.gguf") + " " + main_wav() + " " + jfk() + decoding);
    EXPECT_EQ(run.code, 1);
    EXPECT_TRUE(contains(run.err, "speech: model_file (model_path): " + path("nan.gguf") + " "))
        << run.err;
    EXPECT_EQ(run.out, "");
  }
}

TEST_F(CliAsr, TheDetectionModelIsNamedWhereItIsAtFault) {
  Result run = speech("asr " + model_ + " --vad /nonexistent.gguf " + main_wav());
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(contains(run.err, "speech: io (vad): ")) << run.err;
  run = speech("asr " + model_ + " --vad " + model_ + " " + main_wav());
  EXPECT_EQ(run.code, 1);
  EXPECT_TRUE(contains(run.err, "speech: unsupported (vad): ")) << run.err;
}

// Evaluations of a tiny random model; tests/data/eval says which fixtures pass by the schema alone.
class CliEval : public Cli {
 protected:
  static std::string eval(const std::string& rest = "") {
    return "eval " + data_path("qwen3/dense-tied/checkpoint") + " --fixtures " + data_path("eval") +
           " --threads 2 " + rest;
  }
  // A report in which exactly the fixtures pass that are named.
  std::string report(const std::string& name, const json& run, std::set<std::string> passed) const {
    json edited = run;
    for (json& f : edited["fixtures"]) {
      if (f["passed"].is_null()) continue;
      f["failures"] = passed.count(f["name"]) ? json::array() : json::array({"wrong"});
    }
    std::ofstream(path(name)) << edited;
    return path(name);
  }
};

TEST_F(CliEval, TheTableHasARowForEachQuantization) {
  Result run = speech(eval("--quantize none,int8,int4"));
  EXPECT_EQ(run.code, 0) << run.err;
  std::istringstream lines(run.out);
  std::string line, model, weights, fixtures, word;
  std::getline(lines, line);
  for (const char* column :
       {"WEIGHTS", "FIXTURES", "DISK MB", "RSS MB", "TTFW MS", "TOK/S", "SCORE", "GATE"}) {
    EXPECT_TRUE(contains(line, column)) << column;
  }
  for (auto [type, gate] : {std::pair{"BF16", "baseline"}, std::pair{"int8-g64", "pass"},
                            std::pair{"int4-g64", "pass"}}) {
    ASSERT_TRUE(std::getline(lines, line));
    std::istringstream words(line);
    words >> model >> weights >> fixtures;
    EXPECT_EQ(model, "checkpoint");
    EXPECT_EQ(weights, type);
    EXPECT_EQ(fixtures, "2/5");
    for (int i = 0; i < 5; ++i) {  // disk, memory, time, speed, score
      words >> word;
      EXPECT_GT(std::stod(word), 0) << line;
    }
    words >> word;
    EXPECT_EQ(word, gate);
  }
  EXPECT_FALSE(std::getline(lines, line));
  EXPECT_TRUE(contains(run.err, "never_digits: does not say \"7\"")) << run.err;
}

TEST_F(CliEval, TheGateDecidesTheExitCode) {
  Result run = speech(eval("--format json"));
  ASSERT_EQ(run.code, 0) << run.err;
  json out = json::parse(run.out);
  ASSERT_EQ(out["runs"].size(), 1u);
  EXPECT_EQ(out["gate"][0], nullptr);
  EXPECT_EQ(out["runs"][0]["passed"], 2);
  EXPECT_EQ(out["runs"][0]["scored"], 5);
  EXPECT_EQ(out["runs"][0]["fixtures"].size(), 6u);
  std::string better =
      report("better.json", out["runs"][0], {"always_by_schema", "always_one_of", "never_click"});
  std::string worse = report("worse.json", out["runs"][0], {"always_by_schema"});

  run = speech(eval("--quantize int4 --format json --baseline " + better));
  EXPECT_EQ(run.code, 4) << run.err;
  json gate = json::parse(run.out)["gate"][0];
  EXPECT_EQ(gate["passed"], false);
  EXPECT_EQ(gate["lost"], json::array({"never_click"}));
  EXPECT_NEAR(gate["accuracy_change"].get<double>(), -20, 1e-9);
  EXPECT_TRUE(contains(run.err, "the gate fails")) << run.err;
  EXPECT_EQ(speech(eval("--max-loss 20 --baseline " + better)).code, 0);

  run = speech(eval("--quantize int4 --format json --baseline " + worse));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(json::parse(run.out)["gate"][0]["won"], json::array({"always_one_of"}));
  EXPECT_EQ(speech(eval("--min-score-ratio 1e9 --baseline " + worse)).code, 4);
  // The output of one run is the baseline of the next; so is another model.
  std::ofstream(path("whole.json")) << out;
  EXPECT_EQ(speech(eval("--baseline " + path("whole.json"))).code, 0);
  run = speech(eval("--baseline " + data_path("qwen3/mlx-4bit-g64/checkpoint")));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(contains(run.out, "int4-g64") && contains(run.out, "baseline")) << run.out;
}

TEST_F(CliEval, WhatCannotBeScoredIsAnError) {
  auto fails = [&](const std::string& arguments, int code, const std::string& message) {
    Result run = speech(arguments);
    EXPECT_EQ(run.code, code) << arguments << "\n" << run.err;
    EXPECT_TRUE(contains(run.err, message)) << arguments << "\n" << run.err;
    EXPECT_EQ(run.out, "");
  };
  std::string model = data_path("qwen3/dense-tied/checkpoint");
  fails("eval " + model, 2, "--fixtures");
  fails(eval("--quantize int7"), 2, "int7");
  fails(eval("--max-loss -1"), 2, "--max-loss");
  fails("eval " + model + " --fixtures " + path("missing"), 1, "speech: io (fixtures): ");
  fails(eval("--baseline " + data_path("eval/planner_answers.json")), 1,
        "speech: invalid_argument");
  fails("eval " + data_path("eval/schema.json") + "/ --fixtures " + data_path("eval"), 1,
        "speech: ");
  // Other questions are not compared.
  std::ofstream(path("grammar")) << "root ::= \"{}\"";
  Result run = speech(eval("--format json --grammar " + path("grammar")));
  ASSERT_EQ(run.code, 0) << run.err;
  std::ofstream(path("other.json")) << run.out;
  fails(eval("--baseline " + path("other.json")), 1, "speech: invalid_argument (baseline): ");
}

TEST_F(Cli, WeightsOfLanguageModelsAloneAreChanged) {
  for (const std::string& flag : {std::string("quantize"), std::string("lora")}) {
    std::string value = flag == "lora" ? data_path("qwen3/lora/mlx-lora") : "int4";
    Result run = speech("trace silero-vad " + jfk() + " --out " + path("stages") + " --" + flag +
                        " " + value);
    EXPECT_EQ(run.code, 1) << run.err;
    EXPECT_TRUE(contains(run.err, "speech: unsupported (" + flag + "): ")) << run.err;
  }
}

TEST_F(Cli, AdaptersAreForDenseWeights) {
  std::string dense = data_path("qwen3/dense-tied/checkpoint");
  std::string lora = " --lora " + data_path("qwen3/lora/mlx-lora");
  std::string rest =
      " --threads 2 --ids 5,9,33,7 --max-tokens 8 --temperature 0 --ignore-eos --format json";
  Result plain = speech("generate " + dense + rest),
         with = speech("generate " + dense + lora + rest);
  EXPECT_EQ(with.code, 0) << with.err;
  EXPECT_NE(json::parse(plain.out)["logprobs"], json::parse(with.out)["logprobs"]);
  ASSERT_EQ(
      speech("lora bake " + dense + " " + data_path("qwen3/lora/mlx-lora") + " " + path("baked"))
          .code,
      0);
  EXPECT_EQ(speech("generate " + path("baked") + rest).out, with.out);
  for (const char* command : {"generate", "chat", "serve"}) {
    std::string input = std::string(command) == "generate" ? " -p a" : "";
    Result run = speech(command + (" " + dense) + lora + " --quantize int4 </dev/null" + input);
    EXPECT_EQ(run.code, 1) << command << run.err;
    EXPECT_TRUE(contains(run.err, "speech: unsupported (lora): ") &&
                contains(run.err, "speech lora bake"))
        << command << run.err;
    run = speech(command + (" " + data_path("qwen3/mlx-4bit-g64/checkpoint")) + lora +
                 " </dev/null" + input);
    EXPECT_EQ(run.code, 1) << command << run.err;
    EXPECT_TRUE(contains(run.err, "quantized already")) << command << run.err;
  }
}

TEST_F(Cli, TheExampleInC99FindsTheSpeech) {
  std::string model = json::parse(speech("models --json").out)["models"].back()["files"][0]["path"];
  std::string line = std::string(SPEECH_EXAMPLE) + " " + model + " " + jfk();
  Result run = shell(line);
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.out, "0.322\t2.270\n3.266\t4.446\n5.378\t7.678\n8.162\t10.622\n");
}

TEST_F(Cli, TheSharedLibraryExportsTheApiAlone) {
  Result run = shell("nm -D --defined-only " SPEECH_LIBRARY);
  ASSERT_EQ(run.code, 0) << run.err;
  std::istringstream stream(run.out);
  std::string address, type, name;
  int count = 0;
  for (; stream >> address >> type >> name; ++count) {
    EXPECT_TRUE(name.starts_with("speech_")) << name;
  }
  // Every function that speech.h declares is there.
  std::string text = read_text_file(data_path("../../include/speech.h"));
  int declared = 0;
  for (size_t i = 0; (i = text.find("\nSPEECH_API ", i + 1)) != std::string::npos;) {
    size_t end = text.find('(', i), begin = text.rfind("speech_", end);
    std::string function = text.substr(begin, end - begin);
    EXPECT_TRUE(contains(run.out, " T " + function + "\n")) << function;
    ++declared;
  }
  EXPECT_EQ(count, declared);
}

}  // namespace
}  // namespace speech
