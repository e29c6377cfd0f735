//! Images and videos to MiniMax-M3 patch rows: exact, fast, and safe against anything a stranger can upload.
//!
//! `image::prepare_image` and `video::prepare_video` are the ways in; `python` is the only file that knows Python; `limits` the only one with numbers.

pub mod cancel;
pub mod courtesy;
pub mod data_url;
pub mod decode;
pub mod error;
pub mod exif;
pub mod hash;
pub mod ifd;
pub mod image;
pub mod limits;
pub mod long_values;
pub mod memory;
pub mod patchify;
#[cfg(feature = "extension-module")]
mod python;
#[cfg(test)]
mod random;
pub mod resize;
pub mod sampling;
pub mod size;
pub mod sniff;
#[cfg(feature = "video")]
pub mod video;
