#include "tools/bench/gpu/gpu.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace wstore::bench {
namespace {

constexpr int kWarmUps = 3;
constexpr int kRepetitions = 15;

Manifest Make(std::vector<TensorSpec> specs) {
  absl::StatusOr<Manifest> manifest = Manifest::Create(std::move(specs));
  WSTORE_CHECK(manifest.ok());
  return *std::move(manifest);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Gpu>> Gpu::Open(const std::string& device) {
  int index = -1;
  const std::string_view text = device;
  const bool is_cuda = text.substr(0, 5) == "cuda:";
  const auto parsed = std::from_chars(text.data() + std::min<size_t>(5, text.size()),
                                      text.data() + text.size(), index);
  if (!is_cuda || parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "this benchmark runs on a GPU, named as in --device cuda:0; not on '", device, "'"));
  }
  RETURN_IF_ERROR(UseCudaDevice(index));
  ASSIGN_OR_RETURN(OwnedCudaStream stream, OwnedCudaStream::Create());
  std::unique_ptr<Gpu> gpu(new Gpu(index, std::move(stream)));
  RETURN_IF_ERROR(WSTORE_CUDA(cudaEventCreate(&gpu->begun_)));
  RETURN_IF_ERROR(WSTORE_CUDA(cudaEventCreate(&gpu->ended_)));
  return gpu;
}

Gpu::~Gpu() {
  if (begun_ != nullptr) (void)WSTORE_CUDA(cudaEventDestroy(begun_));
  if (ended_ != nullptr) (void)WSTORE_CUDA(cudaEventDestroy(ended_));
}

absl::StatusOr<double> Gpu::Time(const std::function<absl::Status()>& work) const {
  std::vector<float> times;
  for (int i = -kWarmUps; i < kRepetitions; ++i) {
    RETURN_IF_ERROR(WSTORE_CUDA(cudaEventRecord(begun_, stream())));
    RETURN_IF_ERROR(work());
    RETURN_IF_ERROR(WSTORE_CUDA(cudaEventRecord(ended_, stream())));
    RETURN_IF_ERROR(WSTORE_CUDA(cudaEventSynchronize(ended_)));
    float milliseconds = 0;
    RETURN_IF_ERROR(WSTORE_CUDA(cudaEventElapsedTime(&milliseconds, begun_, ended_)));
    if (i >= 0) times.push_back(milliseconds);
  }
  std::nth_element(times.begin(), times.begin() + kRepetitions / 2, times.end());
  return times[kRepetitions / 2] / 1e3;
}

absl::StatusOr<double> Gpu::TimeCopy(const void* from, void* to, uint64_t size_bytes) const {
  return Time([&] {
    return WSTORE_CUDA(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDeviceToDevice, stream()));
  });
}

Model::Model(Manifest made) : manifest(std::move(made)) {
  for (const Manifest::Tensor& tensor : manifest.tensors()) {
    offsets.push_back(size_bytes);
    size_bytes += (tensor.size_bytes() + 255) / 256 * 256;
  }
}

Model Model::Equal(uint64_t elements, Dtype dtype, uint64_t tensors) {
  std::vector<TensorSpec> specs;
  for (uint64_t i = 0; i < tensors; ++i) {
    specs.push_back({absl::StrCat("layer.", 1000000 + i), dtype, {elements / tensors}});
  }
  return Model(Make(std::move(specs)));
}

Model Model::Qwen3Moe(uint64_t layers) {
  constexpr uint64_t kHidden = 2048;
  constexpr uint64_t kExpert = 768;
  std::vector<TensorSpec> specs;
  const auto add = [&specs](std::string name, Shape shape) {
    specs.push_back({std::move(name), Dtype::kBF16, std::move(shape)});
  };
  for (uint64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    add(prefix + "self_attn.q_proj.weight", {4096, kHidden});
    add(prefix + "self_attn.k_proj.weight", {512, kHidden});
    add(prefix + "self_attn.v_proj.weight", {512, kHidden});
    add(prefix + "self_attn.o_proj.weight", {kHidden, 4096});
    add(prefix + "self_attn.q_norm.weight", {128});
    add(prefix + "self_attn.k_norm.weight", {128});
    add(prefix + "input_layernorm.weight", {kHidden});
    add(prefix + "post_attention_layernorm.weight", {kHidden});
    add(prefix + "mlp.gate.weight", {128, kHidden});
    for (int expert = 0; expert < 128; ++expert) {
      const std::string mlp = absl::StrCat(prefix, "mlp.experts.", expert, ".");
      add(mlp + "gate_proj.weight", {kExpert, kHidden});
      add(mlp + "up_proj.weight", {kExpert, kHidden});
      add(mlp + "down_proj.weight", {kHidden, kExpert});
    }
  }
  return Model(Make(std::move(specs)));
}

std::vector<const void*> Model::At(const void* start) const {
  std::vector<const void*> addresses;
  for (const uint64_t offset : offsets) {
    addresses.push_back(static_cast<const uint8_t*>(start) + offset);
  }
  return addresses;
}

}  // namespace wstore::bench
