#!/usr/bin/env python3
"""Checks the layering and shape of src/ against CMakeLists.txt; prints file:line messages and fails if there are any.

usage: check_layers.py [REPOSITORY]
- A file of src/<folder>/ includes only from its folder and from those that the folder's athanor_library(...) line names,
  directly or through others.
- Third-party headers are included by .cc files only; NCCL and CUDA headers only where the table below says.
- Axes of the process mesh are named, except in texts, where the table below says; all others ask Placement and the mesh's
  groups.
- Files stay below 600 lines (.cu: 800) and open with a comment or an include; a header has #pragma once.
"""
import re
import sys
from pathlib import Path

MAX_LINES = {".cu": 800}
DEFAULT_MAX_LINES = 600
SOURCES = {".h", ".cc", ".inl", ".cu", ".cuh"}
THIRD_PARTY = ("nlohmann/", "CLI/", "spdlog/", "fmt/", "xxhash.h", "pcre2.h", "zlib.h", "zstd.h", "jpeglib.h", "jerror.h",
               "png.h", "openssl/", "gtest/", "gmock/")
# Headers that belong to one place: pattern of the header -> pattern of the files that may include it, from src/.
PLACES = {
    r"nccl\.h": r"comm/nccl.*|cuda/libraries/.*",
    r"(cuda[_.]|cublas|cudnn|cupti|nvml|nvtx3/|curand|nvrtc|cutlass/|cute/).*": r"cuda/.*|comm/nccl.*",
    r"cuda/(?!make_cuda\.h|scratch\.h|libraries/specs\.h|libraries/library\.h).*": r"cuda/.*|comm/nccl.*",
}
# What names an axis, and the files that may: where the mesh is made, and where it is said what a parameter is cut, shared
# and summed over. Whoever else needs ranks asks ProcessMesh for a group by what its ranks share.
AXES = re.compile(r"\b(Axis|Axes|kBatchAxes|kDataParallel|dp_replicate|dp_shard)\b")
MAY_NAME_AXES = ("comm/mesh.h", "comm/mesh.cc", "param/placement.h", "param/placement.cc")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
LIBRARY = re.compile(r"^\s*athanor_(?:library|interface)\(([a-z_]+)([^)]*)\)")


def read_dependencies(cmake, complain):
    """folder -> all folders it may include from, itself included."""
    allowed = {}
    for number, line in enumerate(cmake.read_text().split("\n"), 1):
        match = LIBRARY.match(line)
        if not match:
            continue
        folder, direct = match[1], match[2].split()
        if folder in allowed:
            complain(cmake, number, f"athanor_library({folder}) is there twice")
        allowed[folder] = {folder}
        for name in direct:
            if name not in allowed:
                complain(cmake, number, f"{folder} depends on {name}, which no line above declares")
            allowed[folder] |= allowed.get(name, {name})
    if not allowed:
        complain(cmake, 1, "no athanor_library(...) line")
    return allowed


def check_include(kind, name, path, inside, folder, allowed):
    """Why this include is not allowed, or None. inside: the including file, from src/; folder: its folder, or None."""
    for header, place in PLACES.items():
        if re.fullmatch(header, name) and not re.fullmatch(place, inside):
            return f"<{name}> belongs in src/{place} only"
    if path.suffix in (".h", ".cuh", ".inl") and name.startswith(THIRD_PARTY):
        return f"third-party header <{name}> in a header; include it in a .cc file"
    top = name.split("/")[0]
    if kind == '"' and "/" in name and top in allowed and folder and top not in allowed[folder]:
        return (f'src/{folder} may not include "{name}": '
                f"CMakeLists.txt lets it use {', '.join(sorted(allowed[folder]))}")
    if kind == '"' and "/" in name and top not in allowed:
        return f'"{name}": src/{top} is declared by no athanor_library line'
    return None


def check_file(path, source_root, allowed, complain):
    text = path.read_text()
    lines = text.split("\n")
    inside = path.relative_to(source_root).as_posix()
    folder = inside.split("/")[0] if "/" in inside else None  # None: main.cc, which may use everything
    most = MAX_LINES.get(path.suffix, DEFAULT_MAX_LINES)
    if text.count("\n") >= most:
        complain(path, most, f"{text.count(chr(10))} lines; files stay below {most}: split off what has a name")
    if not lines[0].startswith(("//", "/*", "#include")):
        complain(path, 1, "opens neither with a comment that says its role nor with an include")
    if path.suffix in (".h", ".cuh") and "#pragma once" not in text:
        complain(path, 1, "a header without #pragma once")
    if folder and folder not in allowed:
        complain(path, 1, f"src/{folder} is declared by no athanor_library line")
        return
    for number, line in enumerate(lines, 1):
        named = inside not in MAY_NAME_AXES and AXES.search(re.sub(r'"(?:[^"\\]|\\.)*"', '""', line))
        if named:
            complain(path, number, f"names an axis ({named[1]}): ask Placement, or ProcessMesh for a group of ranks")
        match = INCLUDE.match(line)
        if not match:
            continue
        problem = check_include(match[1], match[2], path, inside, folder, allowed)
        if problem:
            complain(path, number, problem)


def main():
    if len(sys.argv) > 2 or "-h" in sys.argv or "--help" in sys.argv:
        sys.exit(__doc__)
    root = Path(sys.argv[1] if len(sys.argv) == 2 else Path(__file__).resolve().parent.parent)
    problems = []

    def complain(path, line, message):
        problems.append(f"{path.relative_to(root)}:{line}: {message}")

    allowed = read_dependencies(root / "CMakeLists.txt", complain)
    files = sorted(p for p in (root / "src").rglob("*") if p.suffix in SOURCES)
    if not files:
        problems.append("src: no source files")
    for path in files:
        check_file(path, root / "src", allowed, complain)
    print("\n".join(problems) if problems else f"{len(files)} files in {len(allowed)} folders obey the layering")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
