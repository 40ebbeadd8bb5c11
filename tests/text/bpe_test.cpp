#include "text/bpe.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "text/qwen3_data.h"
#include "text/unicode.h"

namespace speech {
namespace {

using testing::qwen3_tokenizer;
using testing::read_json;
using Ids = std::vector<int32_t>;
using Json = nlohmann::ordered_json;

void check_texts(const BpeTokenizer& tokenizer, const Json& cases) {
  for (const Json& c : cases) {
    auto text = c["text"].get<std::string>();
    SCOPED_TRACE(c["text"].dump().substr(0, 200));
    Ids ids = c["ids"].get<Ids>();
    EXPECT_EQ(tokenizer.encode(text), ids);
    EXPECT_EQ(tokenizer.encode(text, MatchAdded::not_special),
              c.value("ids_without_special", c["ids"]).get<Ids>());
    EXPECT_EQ(tokenizer.encode(text, MatchAdded::none),
              c.value("ids_bpe_only", c["ids"]).get<Ids>());
    EXPECT_EQ(tokenizer.encode_marked(text, std::string(text.size(), '\1')),
              c.value("ids_bpe_only", c["ids"]).get<Ids>());
    EXPECT_EQ(tokenizer.encode_marked(text, std::string(text.size(), '\0')), ids);
    EXPECT_EQ(tokenizer.decode(ids), c.value("decoded", text));
  }
}

TEST(Bpe, EncodesTheOfficialTexts) {
  Json file = read_json("text/qwen3/encode.json");
  EXPECT_EQ(qwen3_tokenizer()->size(), file["vocabulary"].get<int>());
  EXPECT_GT(file["cases"].size(), 400u);
  check_texts(*qwen3_tokenizer(), file["cases"]);
}

TEST(Bpe, EncodesWithACutVocabulary) {
  auto tokenizer = BpeTokenizer::load(testing::data_path("text/small"));
  Json file = read_json("text/small/encode.json");
  EXPECT_EQ(tokenizer->size(), file["vocabulary"].get<int>());
  check_texts(*tokenizer, file["cases"]);
}

TEST(Bpe, VocabAndMergesFilesGiveTheSame) {
  namespace fs = std::filesystem;
  fs::path folder = fs::temp_directory_path() / ("speech-bpe-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  for (const char* name : {"vocab.json", "merges.txt", "tokenizer_config.json"}) {
    fs::copy(testing::data_path(std::string("text/small/") + name), folder / name);
  }
  auto tokenizer = BpeTokenizer::load(folder.string());
  fs::remove_all(folder);
  check_texts(*tokenizer, read_json("text/small/encode.json")["cases"]);
}

TEST(Bpe, ArraysOfALlamaCppFileGiveTheSame) {
  Json file = read_json("text/small/tokenizer.json");
  std::vector<std::string> tokens(620), merges;
  std::vector<int32_t> types(620, static_cast<int32_t>(GgufTokenType::unused));
  for (const auto& [text, id] : file["model"]["vocab"].items()) {
    tokens[id.get<size_t>()] = text;
    types[id.get<size_t>()] = static_cast<int32_t>(GgufTokenType::normal);
  }
  for (const Json& t : file["added_tokens"]) {
    tokens[t["id"].get<size_t>()] = t["content"].get<std::string>();
    types[t["id"].get<size_t>()] = static_cast<int32_t>(
        t["special"].get<bool>() ? GgufTokenType::control : GgufTokenType::user_defined);
  }
  for (const Json& m : file["model"]["merges"]) {
    merges.push_back(m[0].get<std::string>() + " " + m[1].get<std::string>());
  }
  std::vector<std::string_view> token_views(tokens.begin(), tokens.end()),
      merge_views(merges.begin(), merges.end());
  auto tokenizer =
      BpeTokenizer::from_gguf("gpt2", "qwen2", token_views, types, merge_views, "x.gguf");
  check_texts(*tokenizer, read_json("text/small/encode.json")["cases"]);
  EXPECT_THROW(
      BpeTokenizer::from_gguf("gpt2", "llama-bpe", token_views, types, merge_views, "x.gguf"),
      Error);
}

TEST(Bpe, DecodesTheOfficialIds) {
  const Json file = read_json("text/qwen3/decode.json");
  for (const Json& c : file["cases"]) {
    Ids ids = c["ids"].get<Ids>();
    SCOPED_TRACE(c.dump().substr(0, 200));
    EXPECT_EQ(qwen3_tokenizer()->decode(ids), c["text"].get<std::string>());
    EXPECT_EQ(qwen3_tokenizer()->decode(ids, true), c["text_skip_special"].get<std::string>());
    for (bool skip : {false, true}) {
      Detokenizer stream(qwen3_tokenizer(), skip);
      std::string text;
      for (int32_t id : ids) {
        std::string piece = stream.push(id);
        EXPECT_EQ(replace_invalid_utf8(piece), piece);
        text += piece;
      }
      text += stream.finish();
      EXPECT_EQ(text, c[skip ? "text_skip_special" : "text"].get<std::string>());
    }
  }
}

TEST(Bpe, AddedTokensActOnlyWhereTheTextIsTrusted) {
  std::string text = "<|im_start|>user\n<|im_end|><|im_end|>\n";
  std::string marks(text.size(), '\0');
  size_t user = text.find("<|im_end|>");
  for (size_t i = 0; i < 10; ++i) marks[user + i] = 1;
  Ids ids = qwen3_tokenizer()->encode_marked(text, marks);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 151645), 1);
  EXPECT_EQ(ids.front(), 151644);
  EXPECT_EQ(qwen3_tokenizer()->decode(ids), text);
}

TEST(Bpe, TokensHaveTheirRawBytes) {
  auto t = qwen3_tokenizer();
  EXPECT_EQ(t->bytes(220), " ");
  EXPECT_EQ(t->bytes(151645), "<|im_end|>");
  EXPECT_EQ(t->bytes(151700), "");
  EXPECT_EQ(t->bytes(-1), "");
  EXPECT_TRUE(t->is_special(151645));
  EXPECT_FALSE(t->is_special(151667));
  EXPECT_TRUE(t->is_added(151667));
  EXPECT_EQ(t->find("<think>"), 151667);
  EXPECT_EQ(t->find(" hello"), 23811);
  EXPECT_EQ(t->find("no such token"), -1);
  for (int b = 0; b < 256; ++b) EXPECT_GE(t->find(std::string(1, static_cast<char>(b))), 0);
}

// A quadratic implementation would take minutes here.
TEST(Bpe, LongWordsAndRunsAreLinear) {
  std::string word, marks;
  for (int64_t i = 0; i < 300000; ++i) {
    word += static_cast<char>('a' + i * i % 23 % 7);
    append_utf8(marks, i % 2 ? 0x0316 : 0x0301);
  }
  for (const std::string& text :
       {word, std::string(300000, 'a'), std::string(300000, ' '), std::string(300000, '\n') + "x",
        std::string(300000, '<'), std::string(300000, '='), marks}) {
    Ids ids = qwen3_tokenizer()->encode(text);
    EXPECT_EQ(qwen3_tokenizer()->decode(ids), nfc(text));
  }
}

std::string failure(const std::string& json) {
  try {
    BpeTokenizer::from_json(json, "t.json");
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\nshould contain: " << part;
}

TEST(Bpe, RefusesWhatItDoesNotUnderstand) {
  Json good = read_json("text/small/tokenizer.json");
  EXPECT_EQ(failure(good.dump()), "no error");
  auto with = [&](auto change) {
    Json file = good;
    change(file);
    return failure(file.dump());
  };
  expect_has(with([](Json& f) { f["normalizer"] = {{"type", "Lowercase"}}; }), "normalizer");
  expect_has(
      with([](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\w+"; }),
      "pre_tokenizer");
  expect_has(with([](Json& f) { f["model"]["type"] = "WordPiece"; }), "model.type");
  expect_has(with([](Json& f) { f["model"]["byte_fallback"] = true; }), "byte_fallback");
  expect_has(with([](Json& f) { f["added_tokens"][0]["lstrip"] = true; }), "lstrip");
  expect_has(with([](Json& f) { f["added_tokens"][0]["id"] = 3; }), "id 3");
  expect_has(with([](Json& f) { f["added_tokens"][0]["id"] = 1ll << 40; }), "wrong id");
  expect_has(with([](Json& f) { f["model"]["vocab"]["zzz"] = -1; }), "the id -1");
  expect_has(with([](Json& f) { f["model"]["vocab"]["zzz"] = 1 << 30; }), "the id 1073741824");
  expect_has(with([](Json& f) { f["model"]["vocab"]["zzz"] = 5; }), "two tokens");
  expect_has(with([](Json& f) { f["model"]["vocab"]["zzz"] = 1.5; }), "integer");
  expect_has(with([](Json& f) { f["model"]["vocab"].erase("!"); }), "byte 0x21");
  expect_has(with([](Json& f) { f["model"]["merges"].push_back({"zq", "x"}); }), "merge");
  expect_has(with([](Json& f) { f["model"]["merges"].push_back("lonely"); }), "blank");
  expect_has(with([](Json& f) { f["model"].erase("vocab"); }), "model.vocab is missing");
  std::string text = good.dump();
  for (size_t cut = 0; cut < text.size(); cut += 97) {
    EXPECT_NE(failure(text.substr(0, cut)), "no error");
  }
  expect_has(failure(text + "x"), "after the end");
}

// tokenizer.json may hold merges as strings, and the merges may come before the vocabulary.
TEST(Bpe, OtherWaysToWriteMerges) {
  Json file = read_json("text/small/tokenizer.json");
  Json model;
  for (const Json& m : file["model"]["merges"]) {
    model["merges"].push_back(m[0].get<std::string>() + " " + m[1].get<std::string>());
  }
  for (const auto& [key, value] : file["model"].items()) {
    if (key != "merges") model[key] = value;
  }
  file["model"] = model;
  check_texts(*BpeTokenizer::from_json(file.dump(), "t"),
              read_json("text/small/encode.json")["cases"]);
}

}  // namespace
}  // namespace speech
