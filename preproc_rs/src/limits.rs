//! Every number of this crate stands here: sizes of the model's patches, budgets, defaults.
//!
//! A budget is checked before memory is taken or time is spent; a message names the value and the budget.

/// Side of a patch in pixels.
pub const PATCH: usize = 14;
/// Patches merged into one token along each axis.
pub const MERGE: usize = 2;
/// Both sides of a resized picture are multiples of this.
pub const FACTOR: usize = PATCH * MERGE;
/// Values of one patch of one frame, order (channel, y, x).
pub const PATCH_VALUES: usize = 3 * PATCH * PATCH;

/// Area rule: fewest and most pixels of a resized image.
pub const AREA_MIN_PIXELS: u64 = 3_136;
pub const AREA_MAX_PIXELS: u64 = 451_584;
/// Area rule for one frame of a video.
pub const VIDEO_AREA_MAX_PIXELS: u64 = 602_112;
/// Long-side rule: default cap, allowed caps, the floor of the short side, most pixels.
pub const LONG_SIDE_DEFAULT: u32 = 2_016;
pub const LONG_SIDE_MIN: u32 = 112;
pub const LONG_SIDE_MAX: u32 = 3_584;
pub const SHORT_SIDE_FLOOR: u32 = 112;
pub const LONG_SIDE_MAX_PIXELS: u64 = 12_845_056;
/// Long side / short side above this is refused by both rules.
pub const MAX_ASPECT_RATIO: u64 = 200;

/// CLIP mean and standard deviation.
pub const MEAN: [f32; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
pub const STD: [f32; 3] = [0.268_629_54, 0.261_302_6, 0.275_777_1];

/// File size of an image, unless the caller says otherwise.
pub const IMAGE_MAX_BYTES: usize = 64 << 20;
/// Width times height of an image, unless the caller says otherwise.
pub const IMAGE_MAX_PIXELS: u64 = 100_000_000;
/// A progressive (or multi-scan) JPEG keeps every coefficient in memory.
pub const PROGRESSIVE_MAX_PIXELS: u64 = 64_000_000;
/// Coefficients of such a JPEG in bytes.
pub const JPEG_COEFFICIENT_BYTES: u64 = 400 << 20;
/// Scans of a JPEG; encoders write about ten, a bomb writes thousands.
pub const JPEG_MAX_SCANS: u64 = 100;
/// Scans times pixels: each scan visits every block again.
pub const JPEG_MAX_SCAN_PIXELS: u64 = 1_000_000_000;
/// One decoded image held as a whole (WebP, GIF, BMP, interlaced PNG), with its decoder's own copy.
pub const WHOLE_IMAGE_BYTES: u64 = 400 << 20;
/// Chunks of a PNG or WebP looked at while searching for EXIF, and markers of a JPEG.
pub const MAX_CHUNKS: usize = 100_000;
/// What the PNG decoder may allocate besides the rows.
pub const PNG_DECODER_BYTES: usize = 16 << 20;
/// Entries of a TIFF or EXIF directory looked at.
pub const IFD_MAX_ENTRIES: usize = 1_000;
/// Tiles reach beyond their picture: all of their bytes (pixels, of HEIC) may be this many times its own, and this much more.
pub const TILES_FACTOR: u64 = 4;
pub const TILES_BYTES: u64 = 64 << 20;
/// Strips and tiles may share bytes: all lengths together may be this many times the file's, and this much more.
pub const PACKED_FACTOR: u64 = 2;
pub const PACKED_BYTES: u64 = 16 << 20;
/// Samples of a pixel of a TIFF; more than colours and alpha are passed over.
pub const TIFF_MAX_SAMPLES: usize = 8;
/// AVIF and HEIC: pixels of one coded picture (a decode cannot be stopped inside one), tiles of a grid, sides, entries of each
/// list of the file.
pub const CODED_MAX_PIXELS: u64 = VIDEO_MAX_FRAME_PIXELS;
pub const HEIF_MAX_TILES: usize = 1_024;
pub const HEIF_MAX_SIDE: u32 = 65_535;
pub const HEIF_MAX_ENTRIES: usize = 10_000;

/// Rows handed to the resizer at once.
pub const BAND_ROWS: usize = 16;
/// Bytes behind each row that vector loads and stores may touch.
pub const ROW_PAD: usize = 64;
/// Output buffers kept for reuse: how many bytes in all.
pub const POOL_BYTES: usize = 256 << 20;

/// Part of every source key: change it whenever the same file and options give other rows.
pub const PREPROCESS_VERSION: &str = "1";

/// File size of a video, unless the caller says otherwise.
pub const VIDEO_MAX_BYTES: usize = 256 << 20;
/// Width times height of one frame: 7680 x 4320.
pub const VIDEO_MAX_FRAME_PIXELS: u64 = 33_177_600;
/// Packets of the video stream looked at, and frames decoded.
pub const VIDEO_MAX_PACKETS: usize = 1_000_000;
pub const VIDEO_MAX_DECODED: usize = 36_000;
/// Wall-clock seconds of one video, unless the caller says otherwise.
pub const VIDEO_DEADLINE_S: f64 = 20.0;
/// Resized width times height times frames: default (64,000 tokens), and the most a caller may ask for.
pub const VIDEO_VOLUME_PIXELS: u64 = 100_352_000;
pub const VIDEO_VOLUME_MAX_PIXELS: u64 = 301_056_000;
/// Frames a second kept: default and allowed range.
pub const VIDEO_FPS_DEFAULT: f64 = 1.0;
pub const VIDEO_FPS_MIN: f64 = 0.2;
pub const VIDEO_FPS_MAX: f64 = 5.0;
/// One allocation inside libav.
pub const LIBAV_MAX_ALLOC: usize = 256 << 20;
/// What libav may read to learn about the streams.
pub const VIDEO_PROBE_BYTES: i64 = 2 << 20;
pub const VIDEO_PROBE_PACKETS: i32 = 500;
pub const VIDEO_MAX_STREAMS: i32 = 32;
/// Rows of a frame converted to RGB at once.
pub const VIDEO_GROUP_ROWS: usize = 32;
/// Threads of one video decode.
pub const VIDEO_MAX_THREADS: u32 = 16;
