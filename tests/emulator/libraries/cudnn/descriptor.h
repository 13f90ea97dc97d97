// Backend descriptors of the fake cuDNN: which attributes each kind has, and their values. Statuses as the installed
// library gives them: CUDNN_STATUS_BAD_PARAM, BAD_PARAM_ATTRIBUTE_TYPE and NOT_INITIALIZED (reading before the end).
#pragma once
#include <cudnn.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace emu::fakes {

struct CudnnGraph;

struct CudnnVerdict {
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  std::string why;
  bool ok() const { return status == CUDNN_STATUS_SUCCESS; }
};

struct Descriptor {
  cudnnBackendDescriptorType_t kind = CUDNN_BACKEND_TENSOR_DESCRIPTOR;
  bool finalized = false;
  std::map<int, std::vector<char>> values;  // by attribute
  std::shared_ptr<const CudnnGraph> graph;  // of a graph, and of what was made from it
  int engine = 0;                           // of a configuration or plan

  bool has(int name) const { return values.count(name) > 0; }
  template <class T>
  std::vector<T> list(int name) const {
    auto found = values.find(name);
    if (found == values.end()) return {};
    std::vector<T> out(found->second.size() / sizeof(T));
    std::memcpy(static_cast<void*>(out.data()), found->second.data(), found->second.size());
    return out;
  }
  template <class T>
  T get(int name, T otherwise = {}) const {
    auto found = values.find(name);
    if (found == values.end() || found->second.size() < sizeof(T)) return otherwise;
    T value;
    std::memcpy(&value, found->second.data(), sizeof(T));
    return value;
  }
  const Descriptor* link(int name) const { return static_cast<const Descriptor*>(get<void*>(name)); }
};

bool known_kind(cudnnBackendDescriptorType_t kind);
CudnnVerdict set_attribute(Descriptor& descriptor, int name, int type, int64_t count, const void* elements);
CudnnVerdict get_attribute(const Descriptor& descriptor, int name, int type, int64_t requested, int64_t* count,
                           void* elements);
// Are all required attributes there and sound in themselves?
CudnnVerdict check_complete(const Descriptor& descriptor);

}  // namespace emu::fakes
