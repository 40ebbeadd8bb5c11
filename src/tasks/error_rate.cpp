#include "tasks/error_rate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>

#include "text/unicode.h"
#include "text/utf8.h"

namespace speech {
namespace {

struct KanjiForm {
  uint32_t old, in_use;
};

#include "tasks/kanji_forms.inc"

uint32_t form_in_use(uint32_t c) {
  const auto* form =
      std::lower_bound(std::begin(kKanjiForms), std::end(kKanjiForms), c,
                       [](const KanjiForm& f, uint32_t value) { return f.old < value; });
  return form != std::end(kKanjiForms) && form->old == c ? form->in_use : c;
}

template <size_t N>
bool is_one_of(const std::array<uint32_t, N>& list, uint32_t c) {
  return std::find(list.begin(), list.end(), c) != list.end();
}

bool is_apostrophe(uint32_t c) {
  return c == '\'' || c == 0x2019;
}

bool is_space(uint32_t c) {
  return char_class(c) == CharClass::space || (c >= 0x1C && c <= 0x1F) ||
         general_category(c)[0] == 'Z';
}

bool is_mark_or_symbol(uint32_t c) {
  const char category = general_category(c)[0];
  return category == 'P' || category == 'S';
}

// Read aloud wherever they stand.
constexpr std::array<uint32_t, 8> kReadMarks = {'%', 0x2030, 0xB0, 0xA5, '$', 0x20AC, 0xA3, '&'};
// Read between two numerals.
constexpr std::array<uint32_t, 7> kBetweenNumerals = {'.', ':', '~', 0x301C, '-', 0x2212, '/'};
constexpr std::array<uint32_t, 16> kKanjiNumerals = {
    0x3007, 0x4E00, 0x4E8C, 0x4E09, 0x56DB, 0x4E94, 0x516D, 0x4E03,   // 0 to 7
    0x516B, 0x4E5D, 0x5341, 0x767E, 0x5343, 0x4E07, 0x5104, 0x5146};  // 8, 9, 10, 10^2 ... 10^12

struct Cluster {
  std::vector<uint32_t> folded;  // NFKC in lower case
  size_t begin = 0, end = 0;     // bytes of the text

  bool is_numeral() const {
    if (folded.size() != 1) return false;
    return general_category(folded[0]) == "Nd" || is_one_of(kKanjiNumerals, folded[0]);
  }
};

// Marks that belong to the character before them.
bool extends(uint32_t c) {
  const std::string_view category = general_category(c);
  return category == "Mn" || category == "Me" || category == "Mc" || c == 0xFF9E || c == 0xFF9F ||
         c == 0x200D || (c >= 0xFE00 && c <= 0xFE0F) || (c >= 0xE0100 && c <= 0xE01EF);
}

std::vector<uint32_t> code_points(std::string_view text) {
  std::vector<uint32_t> out;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = decode_utf8(text, i);
    out.push_back(c.value);
    i += c.size;
  }
  return out;
}

std::vector<Cluster> clusters_of(std::string_view text) {
  std::vector<Cluster> out;
  bool joined = false;  // a zero width joiner came before
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = decode_utf8(text, i);
    if (out.empty() || !(extends(c.value) || joined)) out.push_back({{}, i, i});
    out.back().end = i += c.size;
    joined = c.value == 0x200D;
  }
  for (Cluster& cluster : out) {
    const std::string whole =
        replace_invalid_utf8(text.substr(cluster.begin, cluster.end - cluster.begin));
    cluster.folded = code_points(lower_case(nfkc(whole)));
  }
  return out;
}

std::vector<UnitOfText> characters_of(std::string_view text) {
  const std::vector<Cluster> clusters = clusters_of(text);
  const auto numeral = [&](size_t i) { return i < clusters.size() && clusters[i].is_numeral(); };
  std::vector<UnitOfText> out;
  for (size_t i = 0; i < clusters.size(); ++i) {
    for (uint32_t c : clusters[i].folded) {
      if (is_space(c) || is_apostrophe(c)) continue;
      const bool is_read = is_one_of(kReadMarks, c) || (is_one_of(kBetweenNumerals, c) && i > 0 &&
                                                        numeral(i - 1) && numeral(i + 1));
      if (is_mark_or_symbol(c) && !is_read) continue;
      UnitOfText unit{{}, clusters[i].begin, clusters[i].end};
      append_utf8(unit.text, form_in_use(c));
      out.push_back(std::move(unit));
    }
  }
  return out;
}

std::vector<UnitOfText> words_of(std::string_view text) {
  std::vector<UnitOfText> out;
  bool open = false;  // the last word may go on
  for (const Cluster& cluster : clusters_of(text)) {
    for (uint32_t c : cluster.folded) {
      if (is_apostrophe(c)) continue;
      if (is_space(c) || is_mark_or_symbol(c)) {
        open = false;
        continue;
      }
      if (!open) out.push_back({{}, cluster.begin, cluster.end});
      open = true;
      append_utf8(out.back().text, c);
      out.back().end = cluster.end;
    }
  }
  return out;
}

// Katakana as the hiragana of the same sound, which stand 0x60 below.
std::string fold_kana(std::string_view text) {
  std::string out;
  for (uint32_t c : code_points(text)) {
    const bool katakana = (c >= 0x30A1 && c <= 0x30F6) || c == 0x30FD || c == 0x30FE;
    append_utf8(out, katakana ? c - 0x60 : c);
  }
  return out;
}

using Units = std::vector<std::string>;

// Distances of what has been read of the reference to each prefix of the hypothesis.
using Row = std::vector<int64_t>;

Row advance(Row row, const Units& way, const Units& heard) {
  for (const std::string& unit : way) {
    int64_t before = row[0]++;  // of the row above, one to the left
    for (size_t j = 1; j < row.size(); ++j) {
      const int64_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, before + (unit == heard[j - 1] ? 0 : 1)});
      before = above;
    }
  }
  return row;
}

// Through the closest of several ways.
Row advance(const Row& row, std::span<const Units> ways, const Units& heard) {
  Row best = advance(row, ways[0], heard);
  for (const Units& way : ways.subspan(1)) {
    const Row other = advance(row, way, heard);
    for (size_t j = 0; j < best.size(); ++j) best[j] = std::min(best[j], other[j]);
  }
  for (size_t j = 1; j < best.size(); ++j) best[j] = std::min(best[j], best[j - 1] + 1);
  return best;
}

Row first_row(size_t heard) {
  Row row(heard + 1);
  std::iota(row.begin(), row.end(), int64_t{0});
  return row;
}

std::string text_of(const AcceptedSegment& segment) {
  std::string out;
  for (const AcceptedPiece& piece : segment.pieces) out += piece.text;
  return out;
}

// The character that ends before, or begins at, a byte of a text.
std::string_view character_before(std::string_view text, size_t at) {
  size_t begin = at;
  while (begin > 0 && (static_cast<uint8_t>(text[--begin]) & 0xC0) == 0x80) continue;
  return text.substr(begin, at - begin);
}
std::string_view character_at(std::string_view text, size_t at) {
  return at < text.size() ? text.substr(at, decode_utf8(text, at).size) : std::string_view();
}

class Accepted {
 public:
  Accepted(std::string_view reference, TextUnit unit)
      : reference_(reference), unit_(unit), written_(units_of(reference, unit)) {}

  int64_t length() const { return static_cast<int64_t>(written_.size()); }

  // The units of a text of its own, as they are compared.
  Units alone(std::string_view text) const { return chosen(units_of(text, unit_), 0, text.size()); }
  // Those of a part of the reference.
  Units written(size_t begin, size_t end) const { return chosen(written_, begin, end); }
  // Those of a spelling in the place of a part: its neighbours decide which marks are read.
  Units in_place(std::string_view spelling, size_t begin, size_t end) const {
    const std::string before(character_before(reference_, begin));
    const std::string text =
        before + std::string(spelling) + std::string(character_at(reference_, end));
    return chosen(units_of(text, unit_), before.size(), before.size() + spelling.size());
  }

 private:
  Units chosen(const std::vector<UnitOfText>& units, size_t begin, size_t end) const {
    Units out;
    for (const UnitOfText& u : units) {
      if (u.begin < begin || u.end > end) continue;
      out.push_back(unit_ == TextUnit::character ? fold_kana(u.text) : u.text);
    }
    return out;
  }

  std::string_view reference_;
  TextUnit unit_;
  std::vector<UnitOfText> written_;
};

}  // namespace

TextUnit unit_of_language(std::string_view language) {
  const std::string tag = lower_case(language.substr(0, language.find_first_of("-_")));
  return tag == "ja" || tag == "ko" || tag == "zh" ? TextUnit::character : TextUnit::word;
}

std::vector<UnitOfText> units_of(std::string_view text, TextUnit unit) {
  return unit == TextUnit::character ? characters_of(text) : words_of(text);
}

ErrorCount count_errors(std::string_view reference, std::string_view hypothesis, TextUnit unit) {
  const auto texts = [&](std::string_view text) {
    Units out;
    for (UnitOfText& u : units_of(text, unit)) out.push_back(std::move(u.text));
    return out;
  };
  const Units expected = texts(reference), heard = texts(hypothesis);
  const Row row = advance(first_row(heard.size()), expected, heard);
  return {row.back(), static_cast<int64_t>(expected.size())};
}

ErrorCount count_errors(std::string_view reference, std::span<const AcceptedSegment> segments,
                        std::string_view hypothesis, TextUnit unit) {
  const Accepted accepted(reference, unit);
  const Units heard = accepted.alone(hypothesis);
  Row row = first_row(heard.size());
  size_t at = 0;
  for (const AcceptedSegment& segment : segments) {
    const Row start = row;
    const size_t begin = at;
    for (const AcceptedPiece& piece : segment.pieces) {
      std::vector<Units> ways = {accepted.written(at, at + piece.text.size())};
      for (const std::string& reading : piece.readings) ways.push_back(accepted.alone(reading));
      row = advance(row, ways, heard);
      at += piece.text.size();
    }
    std::vector<Units> others;
    if (segment.bracketed) {
      for (const std::string& spelling : segment.spellings) {
        others.push_back(accepted.in_place(spelling, begin, at));
      }
      if (segment.optional) others.emplace_back();
    }
    if (others.empty()) continue;
    const Row other = advance(start, others, heard);
    for (size_t j = 0; j < row.size(); ++j) row[j] = std::min(row[j], other[j]);
  }
  return {row.back(), accepted.length()};
}

std::optional<std::string> wrong_segments(std::string_view reference,
                                          std::span<const AcceptedSegment> segments,
                                          TextUnit unit) {
  std::string whole;
  for (const AcceptedSegment& segment : segments) whole += text_of(segment);
  if (whole != reference) return "the pieces of its segments give another text";
  const std::vector<UnitOfText> units = units_of(reference, unit);
  size_t at = 0;
  for (const AcceptedSegment& segment : segments) {
    for (const AcceptedPiece& piece : segment.pieces) {
      at += piece.text.size();
      for (const UnitOfText& u : units) {
        if (u.begin >= at || u.end <= at) continue;
        return fmt::format("the piece \"{}\" ends inside \"{}\"", piece.text, u.text);
      }
    }
  }
  return std::nullopt;
}

}  // namespace speech
