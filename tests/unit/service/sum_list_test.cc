// Lists of sums in messages.
#include <random>
#include <utility>
#include <vector>

#include "store/client/transfer_messages.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"

namespace wstore::testing {
namespace {

v1::SumList ListOf(const std::vector<uint32_t>& numbers, int lanes) {
  v1::SumList list;
  for (const uint32_t number : numbers) list.add_of(number);
  for (int i = 0; i < lanes; ++i) list.add_lanes(static_cast<uint64_t>(i));
  return list;
}

}  // namespace

TEST_CASE("sums of tensors and cells come back as they were, in one message or several") {
  std::mt19937_64 random(TestSeed("sum lists"));
  std::vector<TensorSums> tensors;
  std::vector<CellSums> cells;
  for (uint32_t i = 0; i < 1000; ++i) {
    if (random() % 3 == 0) continue;
    const TouchedSums sums{{{random(), random()}}, {{random(), random()}}};
    tensors.push_back({i, sums});
    cells.push_back({i, sums});
  }
  std::vector<TensorSums> tensors_back;
  std::vector<CellSums> cells_back;
  const size_t cut = random() % tensors.size();
  for (const auto& [first, count] : {std::pair(size_t{0}, cut), std::pair(cut, SIZE_MAX)}) {
    const v1::SumList list = wire::ToProto(absl::MakeConstSpan(tensors).subspan(first, count));
    REQUIRE(list.SerializeAsString() ==
            wire::ToProto(absl::MakeConstSpan(cells).subspan(first, count)).SerializeAsString());
    REQUIRE_OK(wire::AppendTensors(list, &tensors_back));
    REQUIRE_OK(wire::AppendCells(list, &cells_back));
  }
  REQUIRE(tensors_back == tensors);
  REQUIRE(cells_back.size() == cells.size());
  for (size_t i = 0; i < cells.size(); ++i) {
    REQUIRE(cells_back[i].cell == cells[i].cell);
    REQUIRE(cells_back[i].sums == cells[i].sums);
  }
  // The four lanes of each, in the order that the messages' definition gives.
  const v1::SumList one = wire::ToProto(std::vector<TensorSums>{{7, {{{1, 2}}, {{3, 4}}}}});
  REQUIRE(one.of_size() == 1);
  REQUIRE(one.of(0) == 7);
  REQUIRE(std::vector<uint64_t>(one.lanes().begin(), one.lanes().end()) ==
          std::vector<uint64_t>{1, 2, 3, 4});
}

TEST_CASE("lists of sums that are none are refused, and nothing of them is kept") {
  const std::vector<TensorSums> before = {{5, {{{1, 2}}, {{3, 4}}}}};
  for (const auto& [list, error] :
       {std::pair(ListOf({6, 8, 7}, 12), "do not ascend at 7"),
        std::pair(ListOf({6, 6}, 8), "do not ascend at 6"),
        // They go on behind the message before.
        std::pair(ListOf({5, 6}, 8), "do not ascend at 5"),
        std::pair(ListOf({0}, 4), "do not ascend at 0"),
        std::pair(ListOf({6, 7}, 7), "2 with 7 lanes"), std::pair(ListOf({}, 4), "0 with 4 lanes"),
        std::pair(ListOf({6}, 0), "1 with 0 lanes")}) {
    std::vector<TensorSums> kept = before;
    REQUIRE_ERROR(wire::AppendTensors(list, &kept), absl::StatusCode::kInvalidArgument, error);
    REQUIRE(kept == before);
  }
  // The last number that there can be.
  std::vector<TensorSums> kept = before;
  REQUIRE_OK(wire::AppendTensors(ListOf({UINT32_MAX}, 4), &kept));
  REQUIRE_ERROR(wire::AppendTensors(ListOf({UINT32_MAX}, 4), &kept),
                absl::StatusCode::kInvalidArgument, "do not ascend");
  REQUIRE_OK(wire::AppendTensors(ListOf({}, 0), &kept));
  REQUIRE(kept.size() == 2);
}

}  // namespace wstore::testing
