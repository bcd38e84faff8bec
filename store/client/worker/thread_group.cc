// Ranks as threads of one process.
#include <map>
#include <mutex>
#include <utility>

#include "wstore/instance_group.h"

namespace wstore {
namespace {

struct Board {
  struct Rank {
    std::string shown;
    std::map<std::string, std::string> given;
    std::function<void()> changed;
  };
  std::mutex mutex;
  std::vector<Rank> ranks;
};

class ThreadGroup final : public InstanceGroup {
 public:
  ThreadGroup(std::shared_ptr<Board> board, uint32_t rank)
      : board_(std::move(board)), rank_(rank) {}
  ~ThreadGroup() override {
    {
      const std::lock_guard<std::mutex> lock(board_->mutex);
      board_->ranks[rank_] = {};
    }
    Notify();
  }

  uint32_t rank() const override { return rank_; }
  uint32_t ranks() const override { return static_cast<uint32_t>(board_->ranks.size()); }

  void Show(std::string_view bytes) override {
    {
      const std::lock_guard<std::mutex> lock(board_->mutex);
      board_->ranks[rank_].shown = bytes;
    }
    Notify();
  }

  std::vector<std::string> Look() override {
    const std::lock_guard<std::mutex> lock(board_->mutex);
    std::vector<std::string> shown;
    for (const Board::Rank& rank : board_->ranks) shown.push_back(rank.shown);
    return shown;
  }

  absl::Status Give(const std::string& name, std::string_view bytes) override {
    {
      const std::lock_guard<std::mutex> lock(board_->mutex);
      board_->ranks[rank_].given[name] = bytes;
    }
    Notify();
    return absl::OkStatus();
  }

  std::optional<std::string> Take(uint32_t rank, const std::string& name) override {
    const std::lock_guard<std::mutex> lock(board_->mutex);
    const auto& given = board_->ranks[rank].given;
    const auto found = given.find(name);
    if (found == given.end()) return std::nullopt;
    return found->second;
  }

  bool NotifyOnChange(std::function<void()> changed) override {
    const std::lock_guard<std::mutex> lock(board_->mutex);
    board_->ranks[rank_].changed = std::move(changed);
    return true;
  }

 private:
  // Under the lock, so that nobody is told after NotifyOnChange took its function back. They only
  // wake a thread.
  void Notify() {
    const std::lock_guard<std::mutex> lock(board_->mutex);
    for (uint32_t i = 0; i < board_->ranks.size(); ++i) {
      if (i != rank_ && board_->ranks[i].changed) board_->ranks[i].changed();
    }
  }

  const std::shared_ptr<Board> board_;
  const uint32_t rank_;
};

}  // namespace

std::vector<std::unique_ptr<InstanceGroup>> MakeThreadGroups(uint32_t ranks) {
  auto board = std::make_shared<Board>();
  board->ranks.resize(ranks);
  std::vector<std::unique_ptr<InstanceGroup>> groups;
  for (uint32_t i = 0; i < ranks; ++i) groups.push_back(std::make_unique<ThreadGroup>(board, i));
  return groups;
}

}  // namespace wstore
