// The attributes of each kind of descriptor that an attention graph needs; see descriptor.h.
#include "descriptor.h"

#include "../fake_library.h"

namespace emu::fakes {
namespace {

struct Attribute {
  int name, type;
  bool required;
  int64_t most;  // elements
};

CudnnVerdict bad(const std::string& why) { return {CUDNN_STATUS_BAD_PARAM, why}; }

constexpr int kLink = CUDNN_TYPE_BACKEND_DESCRIPTOR, kNumber = CUDNN_TYPE_INT64;

const std::map<int, std::vector<Attribute>>& attributes() {
  static const std::map<int, std::vector<Attribute>> all = {
      {CUDNN_BACKEND_TENSOR_DESCRIPTOR,
       {{CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, true, 1},
        {CUDNN_ATTR_TENSOR_DIMENSIONS, kNumber, true, CUDNN_DIM_MAX + 1},
        {CUDNN_ATTR_TENSOR_STRIDES, kNumber, true, CUDNN_DIM_MAX + 1},
        {CUDNN_ATTR_TENSOR_UNIQUE_ID, kNumber, true, 1},
        {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kNumber, true, 1},
        {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, false, 1},
        {CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, false, 1}}},
      {CUDNN_BACKEND_MATMUL_DESCRIPTOR, {{CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, false, 1}}},
      {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
       {{CUDNN_ATTR_OPERATION_MATMUL_DESC, kLink, true, 1},
        {CUDNN_ATTR_OPERATION_MATMUL_ADESC, kLink, true, 1},
        {CUDNN_ATTR_OPERATION_MATMUL_BDESC, kLink, true, 1},
        {CUDNN_ATTR_OPERATION_MATMUL_CDESC, kLink, true, 1}}},
      {CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
       {{CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, true, 1},
        {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, false, 1},
        {CUDNN_ATTR_POINTWISE_AXIS, kNumber, false, 1}}},
      {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
       {{CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kLink, true, 1},
        {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, kLink, true, 1},
        {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, kLink, false, 1},
        {CUDNN_ATTR_OPERATION_POINTWISE_TDESC, kLink, false, 1},
        {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, kLink, true, 1}}},
      {CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
       {{CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, true, 1},
        {CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, false, 1}}},
      {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
       {{CUDNN_ATTR_OPERATION_REDUCTION_DESC, kLink, true, 1},
        {CUDNN_ATTR_OPERATION_REDUCTION_XDESC, kLink, true, 1},
        {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, kLink, true, 1}}},
      {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
       {{CUDNN_ATTR_OPERATION_RESHAPE_XDESC, kLink, true, 1}, {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, kLink, true, 1}}},
      {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
       {{CUDNN_ATTR_OPERATIONGRAPH_OPS, kLink, true, 1000},
        {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, false, 1}}},
      {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
       {{CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, kLink, true, 1},
        {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, true, 1}}},
      {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, {}},
      {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
       {{CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, kLink, false, 1},  // or the text of a plan
        {CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, true, 1},
        {CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, false, 1 << 20},
        {CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, kNumber, false, 1}}},
      {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
       {{CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, kNumber, true, 1000},
        {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, true, 1000},
        {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, false, 1}}}};
  return all;
}

const Attribute* find(const Descriptor& descriptor, int name) {
  for (const Attribute& attribute : attributes().at(descriptor.kind)) {
    if (attribute.name == name) return &attribute;
  }
  return nullptr;
}

size_t type_bytes(int type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_INT64:
      return 8;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return sizeof(void*);
    default:
      return 4;  // enumerations
  }
}

CudnnVerdict check_tensor(const Descriptor& tensor) {
  auto dims = tensor.list<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS),
       strides = tensor.list<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  if (dims.size() != strides.size()) return bad("tensor: as many strides as dimensions are needed");
  if (dims.size() > CUDNN_DIM_MAX) return bad("tensor: too many dimensions");
  for (int64_t dim : dims) {
    if (dim < 1) return bad(text("tensor: dimension ", dim));
  }
  int64_t alignment = tensor.get<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  if (alignment < 1 || (alignment & (alignment - 1)) != 0)
    return bad(text("tensor: alignment ", alignment, " is no power of two"));
  if (tensor.get<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL) && tensor.get<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE)) {
    return bad("tensor: virtual and by value");
  }
  return {};
}

CudnnVerdict check_pack(const Descriptor& pack) {
  auto ids = pack.list<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  if (ids.size() != pack.list<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).size()) {
    return bad("variant pack: as many pointers as ids are needed");
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (ids[i] == ids[j])
        return {CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, text("variant pack: id ", ids[i], " twice")};
    }
  }
  return {};
}

}  // namespace

bool known_kind(cudnnBackendDescriptorType_t kind) { return attributes().count(kind) > 0; }

CudnnVerdict set_attribute(Descriptor& descriptor, int name, int type, int64_t count, const void* elements) {
  if (descriptor.finalized) return bad("the descriptor is finalized");
  const Attribute* attribute = find(descriptor, name);
  if (attribute == nullptr) return bad(text("attribute ", name, " does not belong to this descriptor"));
  if (type != attribute->type)
    return {CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, text("attribute ", name, ": type ", type)};
  if (elements == nullptr || count < 1 || count > attribute->most)
    return bad(text("attribute ", name, ": ", count, " elements"));
  const char* bytes = static_cast<const char*>(elements);
  descriptor.values[name].assign(bytes, bytes + static_cast<size_t>(count) * type_bytes(type));
  return {};
}

CudnnVerdict get_attribute(const Descriptor& descriptor, int name, int type, int64_t requested, int64_t* count,
                           void* elements) {
  if (!descriptor.finalized) return {CUDNN_STATUS_NOT_INITIALIZED, "the descriptor is not finalized"};
  const Attribute* attribute = find(descriptor, name);
  if (attribute == nullptr || !descriptor.has(name)) return bad(text("attribute ", name, " cannot be read"));
  if (type != attribute->type)
    return {CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, text("attribute ", name, ": type ", type)};
  const std::vector<char>& value = descriptor.values.at(name);
  auto size = static_cast<int64_t>(type_bytes(type)), all = static_cast<int64_t>(value.size()) / size;
  if (count) *count = all;
  if (requested > 0 && elements == nullptr) return bad(text("attribute ", name, ": the buffer is NULL"));
  if (requested > 0) std::memcpy(elements, value.data(), static_cast<size_t>(std::min(requested, all) * size));
  return {};
}

CudnnVerdict check_complete(const Descriptor& descriptor) {
  if (descriptor.finalized) return bad("the descriptor is finalized already");
  for (const Attribute& attribute : attributes().at(descriptor.kind)) {
    if (attribute.required && !descriptor.has(attribute.name))
      return bad(text("attribute ", attribute.name, " was not set"));
    if (attribute.type != kLink) continue;
    for (void* linked : descriptor.list<void*>(attribute.name)) {
      if (linked == nullptr || !static_cast<const Descriptor*>(linked)->finalized) {
        return {CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, text("attribute ", attribute.name, " is NULL or not finalized")};
      }
    }
  }
  if (descriptor.kind == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR &&
      !descriptor.has(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG) &&
      !descriptor.has(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION)) {
    return bad(text("attribute ", int(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG), " was not set"));
  }
  if (descriptor.kind == CUDNN_BACKEND_TENSOR_DESCRIPTOR) return check_tensor(descriptor);
  if (descriptor.kind == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) return check_pack(descriptor);
  return {};
}

}  // namespace emu::fakes
