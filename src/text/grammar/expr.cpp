#include "text/grammar/expr.h"

#include <algorithm>

#include "base/error.h"

namespace speech::grammar {
namespace {

std::shared_ptr<Expr> make(Expr::Kind kind) {
  auto e = std::make_shared<Expr>();
  e->kind = kind;
  return e;
}

}  // namespace

ExprPtr literal(std::string_view bytes) {
  auto e = make(Expr::Kind::bytes);
  e->bytes = bytes;
  return e;
}

ExprPtr chars(CharRanges ranges) {
  auto e = make(Expr::Kind::chars);
  e->chars = normalize(std::move(ranges));
  return e;
}

ExprPtr sequence(std::vector<ExprPtr> kids) {
  auto e = make(Expr::Kind::sequence);
  e->kids = std::move(kids);
  return e;
}

ExprPtr choice(std::vector<ExprPtr> kids) {
  if (kids.size() == 1) return kids[0];
  auto e = make(Expr::Kind::choice);
  e->kids = std::move(kids);
  return e;
}

ExprPtr repeat(ExprPtr kid, int64_t min, int64_t max) {
  auto e = make(Expr::Kind::repeat);
  e->kids = {std::move(kid)};
  e->min = min;
  e->max = max;
  return e;
}

ExprPtr optional(ExprPtr kid) {
  return repeat(std::move(kid), 0, 1);
}

ExprPtr call(uint32_t rule) {
  auto e = make(Expr::Kind::rule);
  e->rule = rule;
  return e;
}

ExprPtr token(int32_t id) {
  auto e = make(Expr::Kind::token);
  e->token = id;
  return e;
}

CharRanges normalize(CharRanges ranges) {
  CharRanges cut, out;
  for (auto [a, b] : ranges) {
    if (a < 0xD800) cut.emplace_back(a, std::min(b, 0xD7FFu));
    if (b > 0xDFFF) cut.emplace_back(std::max(a, 0xE000u), std::min(b, 0x10FFFFu));
  }
  std::sort(cut.begin(), cut.end());
  for (auto [a, b] : cut) {
    if (a > b) continue;
    if (!out.empty() && a <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, b);
    } else {
      out.emplace_back(a, b);
    }
  }
  return out;
}

CharRanges complement(const CharRanges& ranges) {
  CharRanges out;
  uint32_t next = 0;
  for (auto [a, b] : normalize(ranges)) {
    if (a > next) out.emplace_back(next, a - 1);
    next = b + 1;
  }
  if (next <= 0x10FFFF) out.emplace_back(next, 0x10FFFF);
  return normalize(out);
}

ExprPtr Rules::counted(const ExprPtr& kid, int64_t min, int64_t max) {
  constexpr int64_t block = 64, plain = 2 * block, most = 1'000'000;
  if (min > most || max > most) {
    fail(Status::out_of_range, "a count of {} in the grammar; at most {} is possible",
         std::max(min, max), most);
  }
  int64_t more = max == unbounded ? 0 : max - min;
  if (min <= plain && more <= plain) return repeat(kid, min, max);
  ExprPtr blocks = call(add("block", repeat(kid, block, block)));
  std::vector<ExprPtr> parts;
  parts.push_back(repeat(blocks, min / block, min / block));
  parts.push_back(repeat(kid, min % block, min % block));
  if (max == unbounded) {
    parts.push_back(repeat(kid, 0, unbounded));
  } else if (more <= plain) {
    parts.push_back(repeat(kid, 0, more));
  } else {
    // 0..q-1 blocks and then 0..block+r reach every count up to q * block + r.
    parts.push_back(repeat(blocks, 0, more / block - 1));
    parts.push_back(repeat(kid, 0, block + more % block));
  }
  return sequence(std::move(parts));
}

}  // namespace speech::grammar
