#include "store/service/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <exception>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace wstore::service {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

class Page {
 public:
  void Gauge(const std::string& name, const std::string& help, double value, Labels labels = {}) {
    ClientMetric& metric = Add(name, help, MetricType::Gauge, std::move(labels));
    metric.gauge.value = value;
  }

  void Durations(const std::string& name, const std::string& help,
                 const TransactionFigures::Row& row, Labels labels) {
    ClientMetric& metric = Add(name, help, MetricType::Histogram, std::move(labels));
    metric.histogram.sample_count = row.count;
    metric.histogram.sample_sum = static_cast<double>(row.sum_micros) * 1e-6;
    uint64_t so_far = 0;
    for (size_t i = 0; i < row.by_duration.size(); ++i) {
      so_far += row.by_duration[i];
      const bool last = i == TransactionFigures::kBoundsMicros.size();
      const double bound =
          last ? std::numeric_limits<double>::infinity()
               : static_cast<double>(TransactionFigures::kBoundsMicros.at(i)) * 1e-6;
      metric.histogram.bucket.push_back({so_far, bound});
    }
  }

  std::vector<MetricFamily> Take() && { return std::move(families_); }

 private:
  ClientMetric& Add(const std::string& name, const std::string& help, MetricType type,
                    Labels labels) {
    if (families_.empty() || families_.back().name != name) {
      families_.push_back({name, help, type, {}});
    }
    ClientMetric& metric = families_.back().metric.emplace_back();
    metric.label = std::move(labels);
    return metric;
  }

  std::vector<MetricFamily> families_;
};

std::vector<MetricFamily> Describe(const ServerFigures& figures) {
  Page page;
  const HeadState& head = figures.head;
  page.Gauge("wstore_head_version", "Number of the version that the fleet should serve",
             static_cast<double>(head.head.version.value()));
  page.Gauge("wstore_durable_version", "Number of the last head that is safe on disk",
             static_cast<double>(head.durable_version.value()));
  page.Gauge("wstore_head_move", "Number of the last head move",
             static_cast<double>(head.head.move.value()));
  page.Gauge("wstore_epoch", "Starts of a server on this store", static_cast<double>(head.epoch));
  page.Gauge("wstore_hold", "1 while publishing is on hold", head.hold ? 1 : 0);
  for (const char* state : {"ok", "hold", "read-only", "recovering", "damaged"}) {
    page.Gauge("wstore_state", "1 for the state the store is in", figures.state == state ? 1 : 0,
               {{"state", state}});
  }
  page.Gauge("wstore_versions", "Versions in the journal", static_cast<double>(figures.versions));
  page.Gauge("wstore_journal_bytes", "Bytes of the journal on disk",
             static_cast<double>(figures.journal_bytes));
  page.Gauge("wstore_uptime_seconds", "Since this server started",
             static_cast<double>(figures.uptime_micros) * 1e-6);
  page.Gauge("wstore_streams", "Open streams", figures.content_streams, {{"kind", "content"}});
  page.Gauge("wstore_streams", "Open streams", figures.watches, {{"kind", "watch"}});
  page.Gauge("wstore_streams", "Open streams", figures.puts, {{"kind", "put"}});
  page.Gauge("wstore_streams", "Open streams", figures.ranks, {{"kind", "rank"}});
  for (const WorkerRow& row : figures.workers) {
    const Labels labels = {{"instance", row.rank.instance}, {"rank", absl::StrCat(row.rank.rank)}};
    Labels with_state = labels;
    with_state.push_back({"state", row.state});
    page.Gauge("wstore_worker_state", "1 for the state that a worker's rank is in", 1, with_state);
  }
  for (const WorkerRow& row : figures.workers) {
    if (!row.position) continue;
    page.Gauge("wstore_worker_version", "Number of the version that a worker's rank holds",
               static_cast<double>(row.position->version.value()),
               {{"instance", row.rank.instance}, {"rank", absl::StrCat(row.rank.rank)}});
  }
  for (const auto& [key, row] : figures.transactions) {
    page.Durations("wstore_transaction_seconds", "From begin to decision", row,
                   {{"kind", key.first}, {"outcome", key.second}});
  }
  return std::move(page).Take();
}

// Prometheus takes what it collects from by weak pointer.
class PrometheusServer final : public MetricsServer {
 public:
  PrometheusServer(std::unique_ptr<prometheus::Exposer> exposer,
                   std::function<ServerFigures()> figures)
      : source_(std::make_shared<Source>(std::move(figures))), exposer_(std::move(exposer)) {
    exposer_->RegisterCollectable(source_);
  }

 private:
  class Source final : public prometheus::Collectable {
   public:
    explicit Source(std::function<ServerFigures()> figures) : figures_(std::move(figures)) {}
    std::vector<MetricFamily> Collect() const override { return Describe(figures_()); }

   private:
    const std::function<ServerFigures()> figures_;
  };

  const std::shared_ptr<Source> source_;
  const std::unique_ptr<prometheus::Exposer> exposer_;  // its threads end first
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const std::string& address, std::function<ServerFigures()> figures) {
  try {
    auto exposer = std::make_unique<prometheus::Exposer>(address, 1);
    return std::make_unique<PrometheusServer>(std::move(exposer), std::move(figures));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot serve metrics on '", address, "' (", error.what(),
                     "): HOST:PORT of this machine, not in use, is needed"));
  }
}

}  // namespace wstore::service
