"""Ways to damage a file, each the same for the same action: {"how": ..., "seed": ...} and what it needs besides."""
import os
import random
import re
import shutil

HOSTILE_NUMBERS = ["1e999", "-1", "0", "18446744073709551616", "NaN", "-0.0", "1e-320", "9007199254740993", "null",
                   '"7"', "[]", "{}", "true", "2147483648", "0.5"]


def apply(path, action, world):
    """Whether the file is another one now."""
    how, rng = action["how"], random.Random(action.get("seed", 0))
    if how == "remove":
        remove(path)
    elif how in ("fifo", "link", "dangling", "loop", "folder", "device"):
        remove(path)
        if how == "fifo":
            os.mkfifo(path)
        elif how == "folder":
            path.mkdir()
        else:
            path.symlink_to({"link": world / "victim" / "secret", "dangling": world / "nowhere" / "at-all",
                             "loop": path, "device": "/dev/zero"}[how])
    elif path.is_file() and not path.is_symlink():
        return change_bytes(path, how, rng, action)
    else:
        return False
    return True


def remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def change_bytes(path, how, rng, action):
    old = path.read_bytes()
    new = bytearray(old)
    if how == "flip":
        for _ in range(action.get("count", 1)):
            if new:
                new[int(rng.random() * len(new))] ^= 1 << rng.randrange(8)
    elif how == "cut":
        del new[int(rng.random() * len(new)):]
    elif how == "grow":
        new += rng.randbytes(1 + rng.randrange(5000))
    elif how == "empty":
        new = bytearray()
    elif how == "noise":
        new = bytearray(rng.randbytes(rng.choice([1, 7, 64, 1024, 5000])))
    elif how == "zeros":
        begin = int(rng.random() * len(new))
        new[begin:begin + 512] = bytes(len(new[begin:begin + 512]))
    elif how == "ones":
        begin = int(rng.random() * len(new))
        new[begin:begin + 64] = b"\xff" * len(new[begin:begin + 64])
    elif how == "deep":
        at = int(rng.random() * len(new))
        new[at:at] = b"[" * 200000 if rng.random() < 0.5 else b'{"a":' * 100000
    elif how == "number":  # one of the numbers of a text
        places = list(re.finditer(rb"-?\d+(\.\d+)?(e-?\d+)?", old))
        if places:
            place = rng.choice(places)
            new[place.start():place.end()] = rng.choice(HOSTILE_NUMBERS).encode()
    elif how == "repeat":
        begin = int(rng.random() * len(new))
        end = begin + rng.randrange(1, 200)
        new[begin:begin] = new[begin:end] * rng.choice([1, 3, 100])
    elif how == "escape":
        at = int(rng.random() * len(new))
        new[at:at] = b"\x1b[2J\x1b]0;owned\x07\x00"
    if new == old:
        return False
    path.write_bytes(new)
    return True


BYTES = ("flip", "cut", "grow", "empty", "noise", "zeros", "ones", "repeat", "escape")
TEXTS = (*BYTES, "number", "number", "number", "deep")
PLACES = ("remove", "fifo", "link", "dangling", "loop", "folder", "device")
