// The smallest program against LibTorch: can it be built, does it find a GPU, and does that add?
#include <torch/torch.h>
#include <iostream>

int main() {
    const bool gpu = torch::cuda::is_available();
    const torch::Tensor ones = torch::ones({2, 3}, gpu ? torch::kCUDA : torch::kCPU);
    std::cout << "torch " << TORCH_VERSION << (gpu ? ", on a GPU: " : ", no GPU: ") << "2 x 3 ones add up to "
              << ones.sum().item<float>() << std::endl;
}
