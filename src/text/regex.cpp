#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <string>

#include "base/error.h"
#include "base/handle.h"
#include "text/utf8.h"

namespace speech {
namespace {

// The library's own limits hold for one place where a match may begin, so their product with the
// length of a text would not end in a lifetime. The steps of a whole search are counted by
// callouts, of which the pattern gets one before each of its parts. A step may look at the whole
// text, hence the product.
constexpr int64_t kMostSteps = 1 << 18, kMostStepsTimesText = 1 << 30;
constexpr uint32_t kMostBacktracks = 1'000'000, kDeepest = 100'000, kMostHeapKiB = 32 * 1024;
constexpr uint32_t kDeepestParentheses = 100;

template <typename T>
T* required(T* p) {
  if (!p) throw std::bad_alloc();
  return p;
}

std::string message_of(int error) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(error, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

int count_step(pcre2_callout_block*, void* left) {
  return --*static_cast<int64_t*>(left) < 0 ? PCRE2_ERROR_MATCHLIMIT : 0;
}

}  // namespace

struct Regex::Code {
  Handle<pcre2_code, pcre2_code_free> code;
};

Regex::Regex(std::string_view pattern) {
  if (pattern.size() > longest_pattern) {
    fail(Status::invalid_argument, "the pattern is longer than {} bytes", longest_pattern);
  }
  Handle<pcre2_compile_context, pcre2_compile_context_free> context(
      required(pcre2_compile_context_create(nullptr)));
  pcre2_set_parens_nest_limit(context.get(), kDeepestParentheses);
  int error = 0;
  size_t place = 0;
  // \C would cut characters.
  constexpr uint32_t kOptions =
      PCRE2_UTF | PCRE2_UCP | PCRE2_AUTO_CALLOUT | PCRE2_NEVER_BACKSLASH_C;
  auto code = std::make_shared<Code>();
  code->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 kOptions, &error, &place, context.get()));
  if (!code->code) {
    fail(Status::invalid_argument, "{} (at byte {} of the pattern)", message_of(error), place);
  }
  code_ = std::move(code);
}

bool Regex::search(std::string_view text) const {
  if (text.size() > longest_text) {
    fail(Status::out_of_range, "a text of {} bytes is too long to search; at most {}", text.size(),
         longest_text);
  }
  std::string valid = replace_invalid_utf8(text);
  Handle<pcre2_match_context, pcre2_match_context_free> context(
      required(pcre2_match_context_create(nullptr)));
  int64_t left = std::min(kMostSteps, kMostStepsTimesText / (std::ssize(valid) + 1));
  pcre2_set_callout(context.get(), count_step, &left);
  pcre2_set_match_limit(context.get(), kMostBacktracks);
  pcre2_set_depth_limit(context.get(), kDeepest);
  pcre2_set_heap_limit(context.get(), kMostHeapKiB);
  Handle<pcre2_match_data, pcre2_match_data_free> data(
      required(pcre2_match_data_create_from_pattern(code_->code.get(), nullptr)));
  int found = pcre2_match(code_->code.get(), reinterpret_cast<PCRE2_SPTR>(valid.data()),
                          valid.size(), 0, 0, data.get(), context.get());
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
  if (found < 0) {
    fail(Status::out_of_range, "searching a text of {} bytes: {}", text.size(), message_of(found));
  }
  return true;
}

}  // namespace speech
