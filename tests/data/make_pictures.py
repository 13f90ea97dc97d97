#!/usr/bin/env python3
"""Writes fixtures/pictures/: small images in the formats that `athanor data images` reads, and expected.txt with what Pillow
makes of them.

usage: make_pictures.py FOLDER      (tests/data/fixtures/pictures; needs Pillow, written with 13.0)
A line of expected.txt: file, --size, --resize-to, --channels, then the pixels [channels, size, size].
"""
import sys
from pathlib import Path

from PIL import Image

SIZES = [(3, 3), (5, 9), (13, 13), (4, 31)]  # --size, --resize-to of pictures with a shorter side of 13


def photo(width, height):
    image = Image.new("RGB", (width, height))
    for y in range(height):
        for x in range(width):
            image.putpixel((x, y), ((x * 37 + y * 11) % 256, (x * x * 5 + y * 23) % 256, (y * y * 7 + x * 3) % 256))
    return image


def cut(image, size, resize_to, channels):
    """As torchvision's Resize (bicubic, antialias) and CenterCrop."""
    image = image.convert("RGB" if channels == 3 else "L")
    width, height = image.size
    shorter = min(width, height)
    if shorter != resize_to:
        image = image.resize((int(resize_to * width / shorter), int(resize_to * height / shorter)), Image.BICUBIC)
    left, top = (round((side - size) / 2) for side in image.size)
    image = image.crop((left, top, left + size, top + size))
    bands = image.split() if channels == 3 else [image]
    return [value for band in bands for value in band.tobytes()]


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    wide, tall = photo(20, 13), photo(13, 17)
    files = {
        "baseline.jpg": (wide, {"quality": 60, "optimize": True}),
        "progressive.jpg": (tall, {"quality": 80, "progressive": True, "subsampling": 0}),
        "grey.jpg": (wide.convert("L"), {"quality": 70, "optimize": True}),
        "cmyk.jpg": (tall.convert("CMYK"), {"quality": 90, "optimize": True}),
        "rgb.png": (wide, {"optimize": True}),
        "alpha.png": (tall.convert("RGBA"), {"optimize": True}),
        "palette.png": (wide.quantize(11), {"optimize": True, "transparency": 3}),
        "two_values.png": (tall.convert("1"), {"optimize": True}),
        "rgb.ppm": (wide, {}),
        "grey.pgm": (tall.convert("L"), {}),
    }
    lines = []
    for name, (image, options) in files.items():
        image.save(folder / name, **options)
        for size, resize_to in SIZES:
            for channels in (1, 3) if size == 3 else (3,):
                pixels = cut(Image.open(folder / name), size, resize_to, channels)
                lines.append(" ".join(map(str, [name, size, resize_to, channels, *pixels])))
    (folder / "expected.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
