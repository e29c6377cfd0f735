//! Compiles the C shims: libjpeg's scanline interface (setjmp must stay inside C), and libav with feature `video`.

fn shim(name: &str) -> cc::Build {
    let mut build = cc::Build::new();
    build.file(format!("csrc/{name}.c")).warnings(true).extra_warnings(true).flag_if_supported("-fvisibility=hidden");
    build
}

fn main() {
    println!("cargo:rerun-if-changed=csrc");
    let mut jpeg = shim("jpeg_shim");
    if let Ok(paths) = std::env::var("DEP_TURBOJPEG_INCLUDE") {
        for path in paths.split(',') {
            jpeg.include(path);
        }
    }
    jpeg.compile("catalejo_jpeg_shim");

    if std::env::var_os("CARGO_FEATURE_VIDEO").is_some() {
        let mut video = shim("video_shim");
        for (library, version) in
            [("libavformat", "59"), ("libavcodec", "59"), ("libavutil", "57"), ("libswscale", "6")]
        {
            match pkg_config::Config::new().atleast_version(version).probe(library) {
                Ok(found) => {
                    video.includes(found.include_paths);
                }
                Err(e) => panic!(
                    "feature `video` needs {library} {version} or newer (FFmpeg 5.1): install libavformat-dev \
                     libavcodec-dev libavutil-dev libswscale-dev and pkg-config, or build without it. {e}"
                ),
            }
        }
        video.compile("catalejo_video_shim");
    }
}
