// Runs a trained model, exported as TorchScript, over raw inputs: its outputs into a file, its speed on standard output.
//
//   relay_libtorch MODEL INPUTS TYPE DIMENSIONS OUTPUTS DEVICE BATCH THREADS SECONDS
//
// INPUTS: the samples one after the other, as raw numbers of TYPE (float32, float64 or int64). DIMENSIONS: those of all
// samples together, such as 360x1x32x32. OUTPUTS: the file for the outputs, raw numbers as well. DEVICE: cpu or cuda.
// BATCH: samples that are computed at once. SECONDS: how long to measure; whole passes over all samples are timed.
#include <torch/script.h>
#include <torch/torch.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

torch::ScalarType type_of(const std::string& name) {
  if (name == "float32") return torch::kFloat32;
  if (name == "float64") return torch::kFloat64;
  if (name == "int64") return torch::kInt64;
  throw std::runtime_error("TYPE: '" + name + "' is not allowed; allowed: float32, float64, int64");
}

std::vector<int64_t> dimensions_of(const std::string& text) {
  std::vector<int64_t> sizes;
  std::stringstream stream(text);
  for (std::string size; std::getline(stream, size, 'x');) sizes.push_back(std::stoll(size));
  return sizes;
}

torch::Tensor read(const std::string& path, torch::ScalarType type, const std::vector<int64_t>& sizes) {
  torch::Tensor tensor = torch::empty(sizes, type);
  std::ifstream file(path, std::ios::binary);
  const auto bytes = static_cast<std::streamsize>(tensor.nbytes());
  if (!file.read(static_cast<char*>(tensor.data_ptr()), bytes) || file.peek() != EOF)
    throw std::runtime_error(path + ": does not have the " + std::to_string(bytes) + " bytes of its dimensions");
  return tensor;
}

void write(const std::string& path, torch::Tensor tensor) {
  tensor = tensor.cpu().contiguous();
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
  if (!file.flush()) throw std::runtime_error(path + ": cannot be written");
}

torch::Tensor pass(torch::jit::Module& model, const torch::Tensor& inputs, int64_t batch) {
  std::vector<torch::Tensor> outputs;
  for (const auto& part : inputs.split(batch)) outputs.push_back(model.forward({part}).toTensor());
  torch::Tensor all = torch::cat(outputs);
  if (all.is_cuda()) torch::cuda::synchronize();
  return all;
}

int run(const std::vector<std::string>& words) {
  if (words.size() != 9) throw std::runtime_error("nine arguments are needed; main.cpp lists them");
  const torch::Device device(words[5]);
  const int64_t batch = std::stoll(words[6]);
  torch::set_num_threads(std::stoi(words[7]));
  const double least_seconds = std::stod(words[8]);

  torch::jit::Module model = torch::jit::load(words[0], device);
  model.eval();
  const c10::InferenceMode inference;
  const torch::Tensor inputs = read(words[1], type_of(words[2]), dimensions_of(words[3])).to(device);
  pass(model, inputs, batch);  // TorchScript optimises itself in the first two passes
  write(words[4], pass(model, inputs, batch));

  int64_t passes = 0;
  double seconds = 0.0;
  const auto began = std::chrono::steady_clock::now();
  do {
    pass(model, inputs, batch);
    ++passes;
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  } while (seconds < least_seconds);
  std::cout << "{\"samples\": " << passes * inputs.size(0) << ", \"seconds\": " << seconds << ", \"torch\": \""
            << TORCH_VERSION << "\"}" << std::endl;
  return 0;
}

}  // namespace

int main(int count, char** words) {
  try {
    return run({words + 1, words + count});
  } catch (const c10::Error& error) {
    std::cerr << "relay_libtorch: " << error.what_without_backtrace() << std::endl;
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "relay_libtorch: " << error.what() << std::endl;
    return 1;
  }
}
