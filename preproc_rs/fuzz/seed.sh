#!/usr/bin/env bash
# Fills the corpora from the test fixtures. Then: cargo +nightly fuzz run image -- -max_total_time=600
set -euo pipefail
cd "$(dirname "$0")"
fixtures=../../tests/fixtures/preproc
mkdir -p corpus/{image,video,exif,data_url}
find "$fixtures"/media "$fixtures"/golden -type f -size -20k ! -name 'v_*' ! -name '*.json' -exec cp {} corpus/image/ \;
find "$fixtures"/media -name 'v_*' -size -40k -exec cp {} corpus/video/ \;
find "$fixtures"/video -type f ! -name '*.json' -exec cp {} corpus/video/ \;
for file in "$fixtures"/media/exif_*.jpg; do tail -c +31 "$file" | head -c 64 > "corpus/exif/$(basename "$file")"; done
python3 - "$fixtures"/media/urls.json <<'PY'
import json, sys
for i, row in enumerate(json.load(open(sys.argv[1]))):
    open(f"corpus/data_url/{i}", "w").write(row["url"].partition(",")[2] or row["url"])
PY
