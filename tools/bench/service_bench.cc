// wstore bench service: what a server adds to the disk and to the wire.
#include <fcntl.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "store/client/connection.h"
#include "tools/bench/bare_stream.h"
#include "tools/bench/bench.h"
#include "tools/bench/harness.h"
#include "tools/bench/served_store.h"
#include "tools/bench/workload.h"
#include "wstore/layout_builder.h"
#include "wstore/publisher.h"
#include "wstore/store.h"
#include "wstore/worker.h"

namespace wstore::bench {
namespace {

constexpr int kRanks = 4;
constexpr double kProtocolSeconds = 0.005;
constexpr double kMemoryLimitBytes = 1 << 30;  // ServerOptions::memory_limit_bytes
constexpr auto kEngineStep = std::chrono::microseconds(500);

double Percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

// A rank that holds every tensor whole, and an engine that makes steps.
class Rank {
 public:
  // `held`: what is in its memory when it starts; null: nothing.
  static absl::StatusOr<std::unique_ptr<Rank>> Start(const Served& served,
                                                     const std::string& instance,
                                                     const DenseSource* held) {
    auto rank = std::make_unique<Rank>();
    ASSIGN_OR_RETURN(const std::shared_ptr<const WorkerBase> base,
                     ReadWorkerBase(served.connect(), Soon()));
    LayoutBuilder builder(base->manifest);
    std::vector<LocalBuffer> buffers;
    for (const Manifest::Tensor& tensor : base->manifest.tensors()) {
      builder.Place(builder.Tensor(tensor.spec.name), builder.Buffer(tensor.spec));
      rank->memory_.emplace_back(tensor.size_bytes());
      buffers.push_back({rank->memory_.back().data(), rank->memory_.back().size()});
    }
    if (held != nullptr) RETURN_IF_ERROR(rank->Fill(base->manifest, *held));
    ASSIGN_OR_RETURN(Layout layout, builder.Build(/*generation=*/1));
    WorkerOptions options;
    options.connect = served.connect();
    options.instance = instance;
    options.holds_base = held != nullptr;
    const auto serve = [&]() -> absl::Status {
      ASSIGN_OR_RETURN(rank->worker_,
                       Worker::Start(base, std::make_shared<const Layout>(std::move(layout)),
                                     buffers, options, Soon()));
      rank->engine_ = std::thread([worker = rank->worker_.get()] {
        while (worker->AtSafePoint() != SafePoint::kClosed) {
          std::this_thread::sleep_for(kEngineStep);
        }
      });
      return rank->worker_->AwaitServing(Soon());
    };
    ASSIGN_OR_RETURN(rank->seconds_to_serve_, Seconds(serve));
    return rank;
  }

  // From its start until it served head.
  double seconds_to_serve() const { return seconds_to_serve_; }

  ~Rank() {
    if (worker_ != nullptr) worker_->Leave(Soon());
    if (engine_.joinable()) engine_.join();
  }

 private:
  absl::Status Fill(const Manifest& manifest, const DenseSource& from) {
    for (uint32_t span = 0; span < manifest.spans(); ++span) {
      ASSIGN_OR_RETURN(const std::unique_ptr<SpanTiles> tiles, from.OpenSpan(span));
      for (const TilePlace place : manifest.SpanPlaces(span)) {
        const uint64_t offset =
            uint64_t{place.tile} * kTileElements * manifest.tensor(place.tensor).element_bytes;
        char* const to = memory_[place.tensor].data() + offset;
        RETURN_IF_ERROR(tiles->ReadTile(place, reinterpret_cast<uint8_t*>(to)));
      }
    }
    return absl::OkStatus();
  }

  std::vector<std::vector<char>> memory_;
  std::unique_ptr<Worker> worker_;
  std::thread engine_;
  double seconds_to_serve_ = 0;
};

absl::StatusOr<double> TimeSyncedWrite(const Scratch& scratch) {
  const std::string path = scratch / "synced";
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const std::string block(4096, 'w');
  const absl::StatusOr<double> seconds = Seconds([&]() -> absl::Status {
    if (write(file, block.data(), block.size()) == static_cast<ssize_t>(block.size()) &&
        fdatasync(file) == 0) {
      return absl::OkStatus();
    }
    return absl::UnavailableError(absl::StrCat("cannot write ", path));
  });
  close(file);
  return seconds;
}

// XORs one into each of `indices` of the first tensor.
absl::Status PublishBits(Client& client, const std::vector<int64_t>& indices) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const Manifest> manifest, client.ReadManifest(Soon()));
  const TensorSpec& spec = manifest->tensor(0).spec;
  std::vector<uint8_t> values(2 * indices.size(), 0);
  for (size_t i = 0; i < indices.size(); ++i) values[2 * i] = 1;
  TensorPatch patch;
  patch.name = spec.name;
  patch.dtype = spec.dtype;
  patch.shape = spec.shape;
  patch.indices = indices;
  patch.values = values;
  patch.form = TensorPatch::Form::kXor;
  return client.Publish({&patch, 1}, nullptr, {}, Soon()).status();
}

// Seconds of each of `count` publishes of two elements.
absl::StatusOr<std::vector<double>> TimeCommits(Client& client, int count) {
  std::vector<double> seconds;
  for (int i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(const double one, Seconds([&] { return PublishBits(client, {i, i + 5000}); }));
    seconds.push_back(one);
  }
  return seconds;
}

absl::StatusOr<std::vector<Measurement>> MeasureCommit(const Options& options,
                                                       const Scratch& scratch) {
  options.report("service: a tiny set to four ranks");
  const std::string base = scratch / "small.safetensors";
  RETURN_IF_ERROR(WriteCheckpoints({4 << 16, 1 << 16, 0, 1}, base, ""));
  RETURN_IF_ERROR(Store::Create(scratch / "small", base, {}).status());
  ASSIGN_OR_RETURN(const std::unique_ptr<Served> served, Served::Start(options, scratch, "small"));
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int i = 0; i < kRanks; ++i) {
    ASSIGN_OR_RETURN(ranks.emplace_back(),
                     Rank::Start(*served, absl::StrCat("instance-", i), nullptr));
  }
  const int count = options.full ? 500 : 100;
  ASSIGN_OR_RETURN(const std::vector<double> commits, TimeCommits(*served->client(), count));
  std::vector<double> writes;
  for (int i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(writes.emplace_back(), TimeSyncedWrite(scratch));
  }
  return std::vector<Measurement>{{"service", "commit of 2 elements to 4 ranks, p50",
                                   MedianOf(commits), "s", "three synced writes and 5 ms",
                                   3 * MedianOf(writes) + kProtocolSeconds, 0}};
}

// Asks for the way from v0 to v1, as a rank does.
absl::StatusOr<v1::ReadDifferenceRequest> FirstStep(Client& client) {
  v1::ReadDifferenceRequest request;
  request.set_transaction(1);
  request.set_takes_packed(true);
  const auto name = [&](VersionId version, v1::VersionName* out) -> absl::Status {
    ASSIGN_OR_RETURN(const VersionInfo info, client.Version(ToString(version), Soon()));
    out->set_version(version.value());
    out->set_chain_digest(ToBytes(info.chain_digest));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(name(VersionId(0), request.mutable_from()));
  RETURN_IF_ERROR(name(VersionId(1), request.mutable_to()));
  return request;
}

// Reads what is asked for, and drops it. `bytes`: what came.
absl::Status DrainDifference(Client& client, const v1::ReadDifferenceRequest& request,
                             uint64_t* bytes) {
  *bytes = 0;
  grpc::ClientContext context;
  client::Connection::SetDeadline(&context, Soon());
  const auto stream = client.connection()->stub().ReadDifference(&context, request);
  v1::ReadDifferenceResponse response;
  while (stream->Read(&response)) *bytes += response.ByteSizeLong();
  return client.connection()->FromGrpc(stream->Finish());
}

// One version that changes 40% of 128 MiB.
absl::Status MakeLargeStore(const Options& options, const Scratch& scratch) {
  options.report("service: making a store with a version of 40% of 128 MiB");
  const std::string base = scratch / "large-0.safetensors";
  const std::string changed = scratch / "large-1.safetensors";
  RETURN_IF_ERROR(WriteCheckpoints({64 << 20, 8 << 20, 0.4, 1}, base, changed));
  RETURN_IF_ERROR(Store::Create(scratch / "large", base, {}).status());
  ASSIGN_OR_RETURN(const std::unique_ptr<Store> store, Store::Open(scratch / "large", {}));
  ASSIGN_OR_RETURN(const std::unique_ptr<Transaction> publish, store->Begin({}));
  RETURN_IF_ERROR(publish->SetCheckpoint(changed));
  return publish->Commit().status();
}

absl::StatusOr<std::vector<Measurement>> MeasureCatchUp(const Options& options,
                                                        const Scratch& scratch,
                                                        const Served& served) {
  options.report("service: streams of content");
  ASSIGN_OR_RETURN(const v1::ReadDifferenceRequest request, FirstStep(*served.client()));
  uint64_t bytes = 0;
  constexpr int kRepetitions = 5;
  const auto drain = [&] { return DrainDifference(*served.client(), request, &bytes); };
  ASSIGN_OR_RETURN(const double stream, Median(kRepetitions, [&] { return Seconds(drain); }));
  ASSIGN_OR_RETURN(const double bare,
                   Median(kRepetitions, [&] { return TimeBareStream(scratch.path(), bytes); }));
  std::vector<Measurement> results;
  const std::string rival = "a bare gRPC stream of as many bytes";
  results.push_back({"service", "the way between two versions, received, bf16 40%", stream, "s",
                     rival, bare, static_cast<double>(bytes)});
  options.report("service: a rank that joins one version behind");
  ASSIGN_OR_RETURN(const std::unique_ptr<DenseSource> base,
                   served.client()->ReadDense(VersionId(0), Soon()));
  ASSIGN_OR_RETURN(const std::unique_ptr<Rank> rank, Rank::Start(served, "late", base.get()));
  results.push_back({"service", "a rank at v0 is proved, catches up and serves, bf16 40%",
                     rank->seconds_to_serve(), "s", rival, bare, static_cast<double>(bytes)});
  return results;
}

absl::StatusOr<std::vector<Measurement>> MeasureLateJoiner(const Options& options,
                                                           const Scratch& scratch) {
  options.report("service: the way across 100 versions");
  constexpr uint64_t kElements = 1 << 20;
  constexpr int kVersions = 100;
  const std::string base = scratch / "chain.safetensors";
  RETURN_IF_ERROR(WriteCheckpoints({kElements, kElements, 0, 1}, base, ""));
  RETURN_IF_ERROR(Store::Create(scratch / "chain", base, {}).status());
  ASSIGN_OR_RETURN(const std::unique_ptr<Served> served, Served::Start(options, scratch, "chain"));
  std::vector<bool> differs(kElements);
  for (int version = 0; version < kVersions; ++version) {
    std::vector<int64_t> indices;
    for (uint64_t i = static_cast<uint64_t>(version) % 7; i < kElements;
         i += 101 + static_cast<uint64_t>(version)) {
      indices.push_back(static_cast<int64_t>(i));
      differs[i] = !differs[i];
    }
    RETURN_IF_ERROR(PublishBits(*served->client(), indices));
  }
  ASSIGN_OR_RETURN(const ServedDifference difference,
                   served->client()->ReadDifference(VersionId(0), VersionId(kVersions), Soon()));
  const auto expected = std::count(differs.begin(), differs.end(), true);
  return std::vector<Measurement>{{"service", "elements sent to a joiner 100 versions behind",
                                   static_cast<double>(difference.info.elements), "elements",
                                   "elements that differ", static_cast<double>(expected), 0}};
}

// Streams of dense bytes whose reader has stopped.
class StoppedReaders {
 public:
  static constexpr int kStreams = 8;

  absl::Status Start(Client& client) {
    for (Stream& stream : streams_) {
      stream.context = std::make_unique<grpc::ClientContext>();
      client::Connection::SetDeadline(stream.context.get(), Soon());
      v1::ReadDenseRequest request;
      request.mutable_version()->set_version(0);
      stream.reader = client.connection()->stub().ReadDense(stream.context.get(), request);
      v1::ReadDenseResponse first;
      if (!stream.reader->Read(&first)) {
        return client.connection()->FromGrpc(stream.reader->Finish());
      }
    }
    return absl::OkStatus();
  }

  ~StoppedReaders() {
    for (Stream& stream : streams_) {
      if (stream.context == nullptr) continue;
      stream.context->TryCancel();
      stream.reader->Finish();
    }
  }

 private:
  struct Stream {
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientReader<v1::ReadDenseResponse>> reader;
  };
  std::array<Stream, kStreams> streams_;
};

absl::StatusOr<std::vector<Measurement>> MeasureStoppedReaders(const Options& options,
                                                               const Served& served) {
  options.report("service: readers that have stopped");
  constexpr double kShare = 0.99;
  const int count = options.full ? 1000 : 30;
  ASSIGN_OR_RETURN(const std::vector<double> alone, TimeCommits(*served.client(), count));
  ASSIGN_OR_RETURN(const std::shared_ptr<Client> other, Client::Connect(served.connect()));
  StoppedReaders stopped;
  RETURN_IF_ERROR(stopped.Start(*other));
  ASSIGN_OR_RETURN(const std::vector<double> beside, TimeCommits(*served.client(), count));
  ASSIGN_OR_RETURN(const double peak, served.PeakBytes());
  return std::vector<Measurement>{
      {"service", "commit of 2 elements beside 8 stopped readers, p99", Percentile(beside, kShare),
       "s", "the same without them", Percentile(alone, kShare), 0},
      {"service", "the server's memory at its peak", peak, "bytes",
       "the limit of gRPC's buffers alone", kMemoryLimitBytes, 0}};
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> RunService(const Options& options) {
  ASSIGN_OR_RETURN(const Scratch scratch, Scratch::Create(options.directory));
  std::vector<Measurement> results;
  const auto add = [&results](const std::vector<Measurement>& more) {
    results.insert(results.end(), more.begin(), more.end());
  };
  ASSIGN_OR_RETURN(const std::vector<Measurement> commit, MeasureCommit(options, scratch));
  add(commit);
  ASSIGN_OR_RETURN(const std::vector<Measurement> joiner, MeasureLateJoiner(options, scratch));
  add(joiner);
  RETURN_IF_ERROR(MakeLargeStore(options, scratch));
  ASSIGN_OR_RETURN(const std::unique_ptr<Served> served, Served::Start(options, scratch, "large"));
  ASSIGN_OR_RETURN(const std::vector<Measurement> catch_up,
                   MeasureCatchUp(options, scratch, *served));
  add(catch_up);
  ASSIGN_OR_RETURN(const std::vector<Measurement> stopped, MeasureStoppedReaders(options, *served));
  add(stopped);
  return results;
}

}  // namespace wstore::bench
