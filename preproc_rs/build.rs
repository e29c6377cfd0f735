//! Compiles the C shim over libjpeg's scanline interface (setjmp must stay inside C).

fn main() {
    println!("cargo:rerun-if-changed=csrc");
    let mut jpeg = cc::Build::new();
    jpeg.file("csrc/jpeg_shim.c").warnings(true).extra_warnings(true).flag_if_supported("-fvisibility=hidden");
    if let Ok(paths) = std::env::var("DEP_TURBOJPEG_INCLUDE") {
        for path in paths.split(',') {
            jpeg.include(path);
        }
    }
    jpeg.compile("catalejo_jpeg_shim");
}
