#!/usr/bin/env bash
# Fills the corpora from the test fixtures. Then: cargo +nightly fuzz run image -- -max_total_time=600
set -euo pipefail
cd "$(dirname "$0")"
fixtures=../../tests/fixtures/preproc
mkdir -p corpus/{image,video,webp,exif,data_url}
find "$fixtures"/media "$fixtures"/golden "$fixtures"/heif -type f -size -20k ! -name 'v_*' ! -name '*.json' -exec cp {} corpus/image/ \;
find "$fixtures"/media "$fixtures"/golden -name '*.webp' -size -20k -exec cp {} corpus/webp/ \;
find "$fixtures"/media -name 'v_*' -size -40k -exec cp {} corpus/video/ \;
find "$fixtures"/video -type f ! -name '*.json' -exec cp {} corpus/video/ \;
for file in "$fixtures"/media/exif_*.jpg; do tail -c +31 "$file" | head -c 64 > "corpus/exif/$(basename "$file")"; done
python3 - "$fixtures"/media/urls.json <<'PY'
import json, sys
for i, row in enumerate(json.load(open(sys.argv[1]))):
    open(f"corpus/data_url/{i}", "w").write(row["url"].partition(",")[2] or row["url"])
PY
python3 - <<'PY' || echo "no seeds of lossy WebP, TIFF and AVIF: python3 has no Pillow" >&2
import random
from PIL import Image
random.seed(0)
for quality in (10, 60, 95):  # large enough for tables of tokens
    noise = Image.frombytes("RGB", (160, 120), random.randbytes(3 * 160 * 120))
    noise.save(f"corpus/webp/noise_{quality}.webp", quality=quality)
for i, size in enumerate([(1, 1), (15, 33), (40, 24), (64, 64), (97, 50)]):
    picture = Image.frombytes("RGB", (8, 8), random.randbytes(192)).resize(size, Image.Resampling.BICUBIC)
    for quality in (1, 50, 95):
        picture.save(f"corpus/webp/{i}_{quality}.webp", quality=quality, method=i)
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK"):
        for packing in (None, "tiff_lzw", "tiff_adobe_deflate", "packbits"):
            picture.convert(mode).save(f"corpus/image/{i}_{mode}_{packing}.tif", compression=packing)
    for mode in ("L", "RGB", "RGBA"):
        picture.convert(mode).save(f"corpus/image/{i}_{mode}.avif", quality=50, speed=10)
PY
