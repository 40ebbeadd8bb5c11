#include "compute/tensor.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "base/error.h"
#include "compute/workspace.h"

namespace speech {
namespace {

TEST(Tensor, ViewsKeepAddresses) {
  std::vector<float> values(24);
  std::iota(values.begin(), values.end(), 0.0f);
  Tensor t = TensorAccess::make(values.data(), {2, 3, 4});
  EXPECT_EQ(t.size(), 24);
  EXPECT_EQ(t.rows(), 6);
  EXPECT_EQ(t.cols(), 4);
  EXPECT_TRUE(t.contiguous());
  EXPECT_EQ(t.shape_text(), "[2, 3, 4]");

  Tensor columns = t.slice(2, 1, 3);
  EXPECT_FALSE(columns.contiguous());
  EXPECT_EQ(*TensorAccess::data(columns), 1.0f);
  EXPECT_EQ(*TensorAccess::data(t[1]), 12.0f);
  EXPECT_EQ(t[1].rank(), 2);
  Tensor swapped = t.swap_axes(0, 1);
  EXPECT_EQ(swapped.shape_text(), "[3, 2, 4]");
  EXPECT_EQ(swapped.stride(0), 4);
  EXPECT_EQ(t.reshape({4, 6}).stride(0), 6);

  Tensor windows = TensorAccess::make(values.data(), {24}).windows(10, 4);
  EXPECT_EQ(windows.shape_text(), "[4, 10]");
  EXPECT_EQ(windows.stride(0), 4);
}

TEST(Tensor, RefusesWhatIsOutside) {
  std::vector<float> values(24);
  Tensor t = TensorAccess::make(values.data(), {2, 3, 4});
  EXPECT_THROW(t.slice(1, 0, 4), Error);
  EXPECT_THROW(t.slice(3, 0, 1), Error);
  EXPECT_THROW(t[2], Error);
  EXPECT_THROW(t.reshape({5, 5}), Error);
  EXPECT_THROW(t.slice(2, 0, 2).reshape({12}), Error);
  EXPECT_THROW(t.swap_axes(0, 2), Error);
  EXPECT_THROW(TensorAccess::make(values.data(), {int64_t{1} << 40, int64_t{1} << 40}), Error);
  EXPECT_THROW(TensorAccess::make(values.data(), {-1, 2}), Error);
}

TEST(Workspace, ScopesGiveBack) {
  Workspace ws;
  Tensor a = ws.tensor({3, 5});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(TensorAccess::data(a)) % 64, 0u);
  size_t before = ws.in_use();
  const float* place = nullptr;
  for (int i = 0; i < 3; ++i) {
    Workspace::Scope scope(ws);
    Tensor b = ws.tensor({1000});
    if (i == 0) place = TensorAccess::data(b);
    EXPECT_EQ(TensorAccess::data(b), place);
    ws.tensor({int64_t{4} << 20});  // needs another block
  }
  EXPECT_EQ(ws.in_use(), before);
  EXPECT_GE(ws.high_water(), size_t{16} << 20);
}

TEST(Workspace, ResetMergesBlocks) {
  Workspace ws;
  for (int i = 0; i < 8; ++i) ws.tensor({300000});
  size_t high = ws.high_water();
  ws.reset();
  EXPECT_EQ(ws.in_use(), 0u);
  const float* first = TensorAccess::data(ws.tensor({300000}));
  const float* second = TensorAccess::data(ws.tensor({300000}));
  EXPECT_EQ(second - first, 300000);
  EXPECT_EQ(ws.high_water(), high);
  ws.shrink();
  EXPECT_EQ(ws.tensor({0, 4}).size(), 0);
}

TEST(Workspace, ReservedTensorsShareABlock) {
  Workspace ws;
  const float* first = TensorAccess::data(ws.tensor({16}));
  ws.reserve(size_t{24} << 20);
  EXPECT_EQ(ws.high_water(), 64u);
  const float* a = TensorAccess::data(ws.tensor({int64_t{2} << 20}));
  const float* b = TensorAccess::data(ws.tensor({int64_t{4} << 20}));
  EXPECT_EQ(b - a, int64_t{2} << 20);
  EXPECT_NE(a, first);
  EXPECT_EQ(ws.high_water(), 64u + (size_t{24} << 20));
}

TEST(Workspace, RefusesAbsurdSizes) {
  Workspace ws;
  EXPECT_THROW(ws.tensor({int64_t{1} << 40, int64_t{1} << 40}), Error);
  EXPECT_THROW(ws.tensor({int64_t{1} << 57}), Error);
  EXPECT_THROW(ws.tensor({-1}), Error);
}

}  // namespace
}  // namespace speech
