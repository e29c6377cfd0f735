//! Compiles the C shims: libjpeg's scanline interface (setjmp must stay inside C), libav with features that need it, and
//! libwebp's lossy decoder once more for CPUs of level x86-64-v3.

use std::path::PathBuf;
use std::process::Command;

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
    // libjpeg-turbo's own conversion to RGB can be replaced when its internal header is at hand.
    println!("cargo:rerun-if-env-changed=TURBOJPEG_SOURCE");
    if std::env::var_os("TURBOJPEG_SOURCE").is_none_or(|source| source == "vendor") {
        if let Some(sources) = sources_of("turbojpeg-sys", "libjpeg-turbo/src") {
            jpeg.include(sources).define("CATALEJO_JPEGINT", None);
        }
    }
    jpeg.compile("catalejo_jpeg_shim");

    let on = |feature: &str| std::env::var_os(format!("CARGO_FEATURE_{feature}")).is_some();
    if on("AVIF") || on("HEIC") {
        libav("still_shim", &[("libavcodec", "59"), ("libavutil", "57")]);
    }
    if on("VIDEO") {
        libav("video_shim", &[("libavformat", "59"), ("libavcodec", "59"), ("libavutil", "57"), ("libswscale", "6")]);
    }
    println!("cargo:rustc-check-cfg=cfg(webp_v3, fuzzing)");
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        webp_v3();
    }
}

/// Compiles a shim against libraries of FFmpeg, which are linked dynamically.
fn libav(name: &str, libraries: &[(&str, &str)]) {
    let mut build = shim(name);
    for (library, version) in libraries {
        match pkg_config::Config::new().atleast_version(version).probe(library) {
            Ok(found) => {
                build.includes(found.include_paths);
            }
            Err(e) => panic!(
                "features `video`, `avif` and `heic` need {library} {version} or newer (FFmpeg 5.1): install libavformat-dev \
                 libavcodec-dev libavutil-dev libswscale-dev and pkg-config, or build without them. {e}"
            ),
        }
    }
    build.compile(&format!("catalejo_{name}"));
}

/// Sets cfg `webp_v3`, or says why not: the decoder is then libwebp-sys's alone, with the same pixels.
fn webp_v3() {
    let mut build = cc::Build::new();
    if !build.is_flag_supported("-march=x86-64-v3").unwrap_or(false) {
        println!("cargo:warning=this C compiler does not know -march=x86-64-v3; WebP will be decoded more slowly");
        return;
    }
    let Some(libwebp) = sources_of("libwebp-sys", "vendor") else {
        println!("cargo:warning=the sources of libwebp-sys were not found; WebP will be decoded more slowly");
        return;
    };
    // Definitions that change structures must be those of libwebp-sys's build script: both builds share them.
    for name in ["NDEBUG", "_THREAD_SAFE", "WEBP_USE_THREAD", "WEBP_HAVE_SSE2", "WEBP_HAVE_SSE41"] {
        build.define(name, "1");
    }
    for flag in ["-march=x86-64-v3", "-fvisibility=hidden", "-include", "csrc/webp/names.h"] {
        build.flag(flag);
    }
    for name in ["dec/frame_dec.c", "dsp/dec.c", "dsp/dec_sse2.c", "dsp/dec_sse41.c"] {
        build.file(libwebp.join("src").join(name));
    }
    for name in ["vp8_dec.c", "tree_dec.c", "tokens.c", "macroblock.c", "shim.c"] {
        build.file(format!("csrc/webp/{name}"));
    }
    build.include(&libwebp).include("csrc/webp").opt_level(3).compile("catalejo_webp_v3");
    println!("cargo:rustc-cfg=webp_v3");
}

/// A folder of the dependency `package` that this build links (their versions are pinned in Cargo.toml).
fn sources_of(package: &str, folder: &str) -> Option<PathBuf> {
    let manifest = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?).join("Cargo.toml");
    let metadata = Command::new(std::env::var_os("CARGO")?)
        .args(["metadata", "--format-version=1", "--offline", "--filter-platform", &std::env::var("TARGET").ok()?])
        .arg("--manifest-path")
        .arg(manifest)
        .output()
        .ok()?;
    let text = String::from_utf8(metadata.stdout).ok()?;
    let of_package = |path: &str| path.contains(package).then(|| PathBuf::from(path).with_file_name(folder));
    text.split("\"manifest_path\":\"").filter_map(|rest| of_package(rest.split('"').next()?)).find(|path| path.is_dir())
}
