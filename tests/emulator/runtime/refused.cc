// Calls that programs may try and that are not emulated: each fails by name and says what to do instead. Anything that
// stands neither here nor elsewhere in this folder does not link, which names it too.
#include "emulator/runtime/api.h"

namespace emu {
namespace {
cudaError_t refused(const char* name, const char* instead) {
  return api(name, kOrdinary, [&](Runtime&) { return not_emulated(name, instead); });
}
constexpr const char* kNoManaged = "managed memory would need page faults of a GPU; use cudaMalloc and copies";
constexpr const char* kNoIpc = "ranks are threads of one process here and can share the pointer or event itself";
constexpr const char* kNoTextures = "arrays, textures and surfaces are not; use linear memory";
constexpr const char* kNoSymbols = "__device__ and __constant__ variables are not; pass a pointer to the kernel";
constexpr const char* kNoVolumes = "three-dimensional copies are not; use cudaMemcpy2DAsync";
constexpr const char* kNoConditional = "conditional graph nodes are not; launch one of several graphs from the host";
constexpr const char* kCaptureInstead = "build this part of the graph by stream capture";
}  // namespace
}  // namespace emu

using emu::refused;

extern "C" {
cudaError_t cudaMallocManaged(void**, size_t, unsigned) { return refused("cudaMallocManaged", emu::kNoManaged); }
cudaError_t cudaMemPrefetchAsync(const void*, size_t, cudaMemLocation, unsigned, cudaStream_t) {
  return refused("cudaMemPrefetchAsync", emu::kNoManaged);
}
cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, cudaMemLocation) {
  return refused("cudaMemAdvise", emu::kNoManaged);
}
cudaError_t cudaStreamAttachMemAsync(cudaStream_t, void*, size_t, unsigned) {
  return refused("cudaStreamAttachMemAsync", emu::kNoManaged);
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) { return refused("cudaIpcGetMemHandle", emu::kNoIpc); }
cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) {
  return refused("cudaIpcOpenMemHandle", emu::kNoIpc);
}
cudaError_t cudaIpcCloseMemHandle(void*) { return refused("cudaIpcCloseMemHandle", emu::kNoIpc); }
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t*, cudaEvent_t) {
  return refused("cudaIpcGetEventHandle", emu::kNoIpc);
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t*, cudaIpcEventHandle_t) {
  return refused("cudaIpcOpenEventHandle", emu::kNoIpc);
}
cudaError_t cudaMemPoolExportToShareableHandle(void*, cudaMemPool_t, cudaMemAllocationHandleType, unsigned) {
  return refused("cudaMemPoolExportToShareableHandle", emu::kNoIpc);
}
cudaError_t cudaMemPoolImportFromShareableHandle(cudaMemPool_t*, void*, cudaMemAllocationHandleType, unsigned) {
  return refused("cudaMemPoolImportFromShareableHandle", emu::kNoIpc);
}

cudaError_t cudaMallocArray(cudaArray_t*, const cudaChannelFormatDesc*, size_t, size_t, unsigned) {
  return refused("cudaMallocArray", emu::kNoTextures);
}
cudaError_t cudaCreateTextureObject(cudaTextureObject_t*, const cudaResourceDesc*, const cudaTextureDesc*,
                                    const cudaResourceViewDesc*) {
  return refused("cudaCreateTextureObject", emu::kNoTextures);
}
cudaError_t cudaCreateSurfaceObject(cudaSurfaceObject_t*, const cudaResourceDesc*) {
  return refused("cudaCreateSurfaceObject", emu::kNoTextures);
}

cudaError_t cudaGetSymbolAddress(void**, const void*) { return refused("cudaGetSymbolAddress", emu::kNoSymbols); }
cudaError_t cudaGetSymbolSize(size_t*, const void*) { return refused("cudaGetSymbolSize", emu::kNoSymbols); }
cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) {
  return refused("cudaMemcpyToSymbol", emu::kNoSymbols);
}
cudaError_t cudaMemcpyFromSymbol(void*, const void*, size_t, size_t, cudaMemcpyKind) {
  return refused("cudaMemcpyFromSymbol", emu::kNoSymbols);
}
cudaError_t cudaMemcpyToSymbolAsync(const void*, const void*, size_t, size_t, cudaMemcpyKind, cudaStream_t) {
  return refused("cudaMemcpyToSymbolAsync", emu::kNoSymbols);
}
cudaError_t cudaMemcpyFromSymbolAsync(void*, const void*, size_t, size_t, cudaMemcpyKind, cudaStream_t) {
  return refused("cudaMemcpyFromSymbolAsync", emu::kNoSymbols);
}

cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms*) { return refused("cudaMemcpy3D", emu::kNoVolumes); }
cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms*, cudaStream_t) {
  return refused("cudaMemcpy3DAsync", emu::kNoVolumes);
}
cudaError_t cudaMemset3DAsync(cudaPitchedPtr, int, cudaExtent, cudaStream_t) {
  return refused("cudaMemset3DAsync", "use cudaMemset2DAsync");
}
cudaError_t cudaMalloc3D(cudaPitchedPtr*, cudaExtent) { return refused("cudaMalloc3D", "use cudaMalloc"); }

cudaError_t cudaStreamAddCallback(cudaStream_t, cudaStreamCallback_t, void*, unsigned) {
  return refused("cudaStreamAddCallback", "use cudaLaunchHostFunc");
}
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t, cudaGraph_t, const cudaGraphNode_t*, const cudaGraphEdgeData*,
                                          size_t, cudaStreamCaptureMode) {
  return refused("cudaStreamBeginCaptureToGraph", "capture into a new graph with cudaStreamBeginCapture");
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*, const cudaGraphEdgeData*, size_t,
                                                unsigned) {
  return refused("cudaStreamUpdateCaptureDependencies", "join streams by events");
}
cudaError_t cudaStreamSetAttribute(cudaStream_t, cudaStreamAttrID, const cudaStreamAttrValue*) {
  return refused("cudaStreamSetAttribute", "caches and synchronisation policies do not exist here; leave it out");
}
cudaError_t cudaStreamGetAttribute(cudaStream_t, cudaStreamAttrID, cudaStreamAttrValue*) {
  return refused("cudaStreamGetAttribute", "caches and synchronisation policies do not exist here; leave it out");
}

cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle*, cudaGraph_t, unsigned, unsigned) {
  return refused("cudaGraphConditionalHandleCreate", emu::kNoConditional);
}
cudaError_t cudaGraphAddNode(cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t*, const cudaGraphEdgeData*, size_t,
                             cudaGraphNodeParams*) {
  return refused("cudaGraphAddNode",
                 "use the functions of one kind of node; conditional nodes are not emulated at all");
}
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t*, size_t, cudaGraph_t) {
  return refused("cudaGraphAddChildGraphNode", "launch the graph in the stream that is being captured");
}
cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t*, size_t,
                                   const cudaMemcpy3DParms*) {
  return refused("cudaGraphAddMemcpyNode", emu::kCaptureInstead);
}
cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t*, size_t,
                                   const cudaMemsetParams*) {
  return refused("cudaGraphAddMemsetNode", emu::kCaptureInstead);
}
cudaError_t cudaGraphAddMemAllocNode(cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t*, size_t,
                                     cudaMemAllocNodeParams*) {
  return refused("cudaGraphAddMemAllocNode", "capture cudaMallocAsync");
}
cudaError_t cudaGraphAddMemFreeNode(cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t*, size_t, void*) {
  return refused("cudaGraphAddMemFreeNode", "capture cudaFreeAsync");
}
cudaError_t cudaGraphClone(cudaGraph_t*, cudaGraph_t) { return refused("cudaGraphClone", "capture it twice"); }
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) {
  return refused("cudaGraphDebugDotPrint", "use cudaGraphGetNodes and cudaGraphNodeGetDependencies");
}
cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t*, cudaGraph_t, cudaGraphInstantiateParams*) {
  return refused("cudaGraphInstantiateWithParams", "use cudaGraphInstantiate");
}
cudaError_t cudaUserObjectCreate(cudaUserObject_t*, void*, cudaHostFn_t, unsigned, unsigned) {
  return refused("cudaUserObjectCreate", "keep what a graph uses alive beside it");
}

cudaError_t cudaImportExternalMemory(cudaExternalMemory_t*, const cudaExternalMemoryHandleDesc*) {
  return refused("cudaImportExternalMemory", "other APIs' memory does not exist here");
}
cudaError_t cudaLibraryLoadData(cudaLibrary_t*, const void*, cudaJitOption*, void**, unsigned, cudaLibraryOption*,
                                void**, unsigned) {
  return refused("cudaLibraryLoadData", "machine code cannot run here; compile the kernel for the host");
}
cudaError_t cudaLibraryLoadFromFile(cudaLibrary_t*, const char*, cudaJitOption*, void**, unsigned, cudaLibraryOption*,
                                    void**, unsigned) {
  return refused("cudaLibraryLoadFromFile", "machine code cannot run here; compile the kernel for the host");
}
cudaError_t cudaGetExportTable(const void**, const cudaUUID_t*) {
  return refused("cudaGetExportTable", "the tables are private to NVIDIA's libraries");
}
}
